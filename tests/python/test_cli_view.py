"""Goal: the page shows what is in a file, at any width, and nothing in a record can run in it.

Method: Chromium without a window opens the page as it is; a record that could run a script would
change what the browser prints. Measures of the layout come from a copy with a script of the test.
"""

import html
import io
import json
import os
import re
import wave
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ffrecord
from browser import shown
from cli import ok, run
from ffrecord._cli.data.pictures import thumbnail
from reading import typed_file

ATTACKS = [
    "<script>document.title='owned'</script>",
    "</script><script>document.title='owned'</script>",
    '"><img src=x onerror="document.title=\'owned\'">',
    "' onmouseover='document.title=1' x='",
    "<svg onload=\"document.title='owned'\">",
    "</pre></article></main><iframe srcdoc='<script>top.document.title=1</script>'></iframe>",
    "<!--",
    "<style>*{display:none}</style>",
    "<base href='http://127.0.0.1:1/'>",
    "\u202egnp.exe\x00\x1b[2J&lt;b&gt;&amp;",
]


def png(side: int = 8, noise: bool = False) -> bytes:
    image = pytest.importorskip("PIL.Image")
    pixels = np.zeros((side, side, 3), np.uint8)
    if noise:
        pixels = np.random.default_rng(0).integers(0, 255, pixels.shape, np.uint8)
    made = io.BytesIO()
    image.fromarray(pixels).save(made, "PNG")
    return made.getvalue()


def sound() -> bytes:
    made = io.BytesIO()
    with wave.open(made, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(bytes(800))
    return made.getvalue()


def mixed(folder: Path) -> Path:
    path = folder / "mixed.ffr"
    schema = {
        **{"image": "bytes", "sound": "bytes", "text": "utf8", "label": "i64"},
        **{"tokens": "u16[300]", "weight": "f32", "vector": "f32[3]"},
    }
    with ffrecord.Writer(path, schema, key=True) as writer:
        for i in range(12):
            value: dict[str, Any] = {"image": png(), "sound": sound(), "text": f"line {i}\nnext"}
            value |= {"label": i % 3, "tokens": np.arange(300) + i, "weight": i / 2}
            writer.write({**value, "vector": np.ones(3)}, key=f"key{i}")
    return path


def page_of(path: Path, *options: str) -> Path:
    page = path.parent / "page.html"
    ok("ffrecord", "view", path, "--output", page, "--overwrite", *options)
    return page


_OUTSIDE = ("html", "head", "meta", "title", "style", "body", "header", "main", "script")
_TEXT = ("h1", "h2", "h3", "h4", "dl", "dt", "dd", "p", "pre", "code", "b", "ul", "li", "div")
_TABLE = ("section", "table", "tbody", "tr", "th", "td", "meter")
OURS = {*_OUTSIDE, *_TEXT, *_TABLE, "label", "input", "output", "article", "img", "audio"}


def elements(dom: str) -> tuple[set[str], list[tuple[str, str | None]]]:
    """The names of all elements, and all attributes."""
    tags: set[str] = set()
    attributes: list[tuple[str, str | None]] = []

    class Parser(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            tags.add(tag)
            attributes.extend(attrs)

    Parser().feed(dom)
    return tags, attributes


def visible(dom: str) -> list[str]:
    """The titles of the records that the search leaves."""
    cards = re.findall(r"<article ([^>]*)><h3>([^<]*)</h3>", dom)
    return [title for attributes, title in cards if 'hidden=""' not in attributes.split()]


def test_the_page_shows_each_kind_and_is_searched_by_key(tmp_path: Path) -> None:
    page = page_of(mixed(tmp_path))

    dom = shown(page.as_uri(), tmp_path)

    assert len(visible(dom)) == 12
    assert dom.count('<img alt="png" src="data:image/png;base64,') == 12
    assert dom.count('src="data:audio/wav;base64,') == 12
    assert "line 3\nnext" in dom
    assert "<b>7</b>" in dom and "and 172 more" in dom
    assert "12 of 12 records on this page" in dom
    assert re.search(r'<th>2</th><td class="bar"><meter min="0" max="4" value="4">', dom)
    assert visible(shown(f"{page.as_uri()}#key7", tmp_path)) == ["7 · key7"]
    assert "0 of 12 records" in shown(f"{page.as_uri()}#nothing", tmp_path)
    # Nothing is fetched from anywhere.
    _, attributes = elements(dom)
    targets = [value for name, value in attributes if name in ("src", "href", "action", "srcset")]
    assert len(targets) == 24 and all(str(value).startswith("data:") for value in targets)


def test_pictures_are_decoded_by_the_browser_and_the_layout_fits(tmp_path: Path) -> None:
    path = mixed(tmp_path)
    long = tmp_path / ("n" * 180 + ".ffr")
    os.rename(path, long)
    text = page_of(long).read_text()
    text = re.sub(r"; script-src '[^']*'", "; script-src 'unsafe-inline'", text)
    probe = """<script>addEventListener("load", () => {
      const root = document.documentElement, cards = [...document.querySelectorAll("article")];
      const across = cards.filter(c => c.offsetTop === cards[0].offsetTop).length;
      const drawn = [...document.images].filter(i => i.naturalWidth === 8).length;
      document.title = [root.scrollWidth, innerWidth, across, drawn].join(" ");
    })</script></body>"""
    (tmp_path / "probed.html").write_text(text.replace("</body>", probe))

    measured = {}
    for width in (500, 1500):
        dom = shown((tmp_path / "probed.html").as_uri(), tmp_path, f"{width}x900")
        found = re.search(r"<title>(\d+) (\d+) (\d+) (\d+)</title>", dom)
        assert found is not None, dom[:300]
        scroll, inner, across, drawn = map(int, found.groups())
        assert scroll <= inner == width
        assert drawn == 12
        measured[width] = across

    assert measured[500] < measured[1500]


def test_nothing_in_a_record_runs(tmp_path: Path) -> None:
    path = tmp_path / "<img src=x onerror=document.title=1>.ffr"
    names = {attack.replace("\0", "")[:80]: "utf8" for attack in ATTACKS}
    with ffrecord.Writer(path, {**names, "raw": "bytes"}, key=True) as writer:
        for attack in ATTACKS:
            value = dict.fromkeys(names, attack)
            writer.write({**value, "raw": attack.encode()}, key=attack)
    # What begins like a picture, and goes on as a page.
    with ffrecord.Writer(tmp_path / "plain.ffr") as writer:
        for magic in (b"", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"RIFF____WAVE", b"<svg onload=x>"):
            for attack in ATTACKS:
                writer.write(magic + attack.encode())

    for file in (path, tmp_path / "plain.ffr"):
        page = page_of(file)
        dom = shown(page.as_uri(), tmp_path)
        title = re.search(r"<title>([^<]*)</title>", dom)
        assert title is not None and html.unescape(title[1]) == str(file)
        tags, attributes = elements(dom)
        assert tags <= OURS
        assert not [name for name, _ in attributes if name.startswith("on")]
        assert dom.count("<script") == dom.count("<style") == 1
        with ffrecord.open(file) as reader:
            assert len(visible(dom)) == len(reader)  # No comment or tag has swallowed any.
        text = page.read_text()
        assert "\x1b" not in text and "\u202e" not in text and "\x00" not in text


def test_the_policy_of_the_page_stops_what_escaping_would_miss(tmp_path: Path) -> None:
    text = page_of(mixed(tmp_path)).read_text()
    attack = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    (tmp_path / "attacked.html").write_text(text.replace("<h2>Records", attack + "<h2>Records"))

    dom = shown((tmp_path / "attacked.html").as_uri(), tmp_path)

    assert "<title>owned" not in dom
    assert "12 of 12 records on this page" in dom  # Our own script has run.


def test_damaged_records_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "d.ffr"
    with ffrecord.Writer(path) as writer:
        for i in range(50):
            writer.write(b"record %d " % i * 9)
    path.write_bytes(path.read_bytes().replace(b"record 4 ", b"record X ", 1))

    page = page_of(path)

    dom = shown(page.as_uri(), tmp_path)
    assert 'id="damaged"' in dom
    assert re.search(r"<dt>damaged</dt><dd>1</dd>", dom)
    assert len(visible(dom)) == 50
    assert dom.count('class="bad"') == 1


def test_the_page_stays_within_its_size(tmp_path: Path) -> None:
    path = tmp_path / "big.ffr"
    with ffrecord.Writer(path, {"data": "bytes", "text": "utf8"}) as writer:
        for _ in range(400):
            writer.write({"data": b"\x89PNG\r\n\x1a\n" + os.urandom(30_000), "text": "é<" * 9000})
    before = os.path.getsize(path)

    facts = json.loads(
        ok(
            "ffrecord",
            "view",
            path,
            "--output",
            tmp_path / "p.html",
            "--max-size",
            "1MiB",
            "--count",
            "400",
            "--json",
        )
    )

    assert facts["size_bytes"] < 1.2 * (1 << 20) < before
    assert 10 < facts["records_shown"] < 400
    assert "The page is full" in (tmp_path / "p.html").read_text()


def test_a_record_of_many_sounds_stays_within_the_size(tmp_path: Path) -> None:
    names = [f"sound{number}" for number in range(40)]
    with ffrecord.Writer(tmp_path / "x.ffr", dict.fromkeys(names, "bytes")) as writer:
        for _ in range(3):
            writer.write({name: b"fLaC" + os.urandom(500_000) for name in names})

    page = page_of(tmp_path / "x.ffr", "--max-size", "1MiB")

    assert page.stat().st_size < 1.2 * (1 << 20)
    assert page.read_text().count("<audio") == 1


def test_a_record_of_many_texts_stays_within_the_size(tmp_path: Path) -> None:
    names = [f"text{number}" for number in range(60)]
    with ffrecord.Writer(tmp_path / "x.ffr", dict.fromkeys(names, "utf8")) as writer:
        writer.write({name: "\U000e0001" * 2000 for name in names})

    page = page_of(tmp_path / "x.ffr", "--max-size", "64KiB")

    assert page.stat().st_size < 110_000
    assert "do not fit on this page" in page.read_text()


def test_the_page_of_this_folder_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    with ffrecord.Writer(tmp_path / "data" / "x.ffr") as writer:
        writer.write(b"x")
    monkeypatch.chdir(tmp_path / "data")

    ok("ffrecord", "view", ".")

    assert sorted(os.listdir(".")) == ["data.html", "x.ffr"]


def test_large_pictures_become_small(tmp_path: Path) -> None:
    with ffrecord.Writer(tmp_path / "p.ffr") as writer:
        writer.write(png(900, noise=True))
        writer.write(png(900, noise=True)[:-2000])  # Cut off.
    page = page_of(tmp_path / "p.ffr")
    assert page.stat().st_size < 1 << 20
    assert "data:image/jpeg;base64," in page.read_text()
    assert "too large for this page" in page.read_text()


def test_a_picture_of_too_many_pixels_is_not_decoded() -> None:
    """A few bytes can claim to be a picture that fills the memory."""
    image = pytest.importorskip("PIL.Image")
    for size, is_small in (((4000, 4000), True), ((9000, 9000), False), ((100, 700_000), False)):
        made = io.BytesIO()
        image.new("1", size).save(made, "PNG")
        found = thumbnail(made.getvalue() + bytes(40 << 10))  # Smaller ones are left as they are.
        assert (found is not None) == is_small, size


def test_tokens_without_columns(tmp_path: Path) -> None:
    with ffrecord.Writer(tmp_path / "t.ffr") as writer:
        writer.write(np.array([50256, 7, 11], np.uint16))
        writer.write(b"odd")
    text = page_of(tmp_path / "t.ffr", "--tokens", "u16").read_text()
    assert "<b>50256</b> <b>7</b> <b>11</b>" in text
    assert "no whole tokens" in text


def test_the_page_of_nothing_and_wrong_arguments(tmp_path: Path) -> None:
    with ffrecord.Writer(tmp_path / "empty.ffr"):
        pass
    typed_file(tmp_path)
    page = page_of(tmp_path / "empty.ffr")
    assert "0 of 0 records" in shown(page.as_uri(), tmp_path)
    for arguments, code, expected in (
        (["empty.ffr", "--output", "page.html"], 4, "--overwrite"),
        (["empty.ffr", "--output", "none/page.html"], 4, "no folder"),
        (["empty.ffr", "--output", ""], 2, "empty"),
        (["typed.ffr", "--output", "new.html", "--tokens", "u16"], 2, "without columns"),
        (["empty.ffr", "--output", "s3://bucket/page.html"], 2, "is an address"),
        (["none.ffr", "--output", "x.html"], 4, "none.ffr"),
        (["empty.ffr", "--max-size", "1"], 2, "--max-size"),
        (["empty.ffr", "--max-size", "9TiB"], 2, "--max-size"),
        (["empty.ffr", "--examine", "0"], 2, "--examine"),
        (["empty.ffr", "--tokens", "f32"], 2, "--tokens"),
    ):
        names = [word for word in arguments if "." in word and "://" not in word]
        words = [str(tmp_path / word) if word in names else word for word in arguments]
        done = run("ffrecord", "view", *words)
        assert done.returncode == code, arguments
        assert expected in done.stderr
    assert not (tmp_path / "x.html").exists()
