"""How sources are opened: one by its content, several one after the other."""

import os
from collections.abc import Sequence

from ffrecord.pack import _places
from ffrecord.pack._inputs import Inputs
from ffrecord.pack._kinds import files_of
from ffrecord.pack._several import SeveralSources
from ffrecord.pack._source import Source, SourceOptions

# A tar that is piped into the process.
PIPE = "-"


def open_source(
    paths: str | os.PathLike[str] | Sequence[str], options: SourceOptions | None = None
) -> Source:
    """Recognise a source by its content; several are packed one after the other.

    Args:
        paths: one source, or files of one kind; `pack._kinds` lists the kinds. "-" is a tar from
            standard input.
        options: see `SourceOptions`.

    Raises:
        FileNotFoundError: a path does not exist.
        ValueError: it is not a known source, has nothing to pack, or an option does not apply to
            it.
        ImportError: it needs a package that is not installed.
    """
    given = [paths] if isinstance(paths, str | os.PathLike) else paths
    if not given or "" in given:
        raise ValueError("the name of a source is empty: is a variable of the shell not set?")
    if PIPE in given:
        if len(given) > 1:
            raise ValueError(f"{PIPE} is standard input, and one of several sources: pack it alone")
        from ffrecord.pack._tar import PipedTar  # Brings tarfile.

        return PipedTar(options or SourceOptions())
    # The process may go to another folder before all are opened.
    _places.forget()
    names = _places.all_from_root(os.fspath(path) for path in given)
    _places.remember(filter(_places.is_address, names))  # Else things in them are asked for first.
    options = options or SourceOptions()
    if len(names) == 1 and (files := files_of(names[0], options)) is not None:
        names, options = files, options._replace(split=None)
    inputs = Inputs(names, options)
    source = SeveralSources(inputs) if len(names) > 1 else inputs.first
    source._inputs = inputs
    return source
