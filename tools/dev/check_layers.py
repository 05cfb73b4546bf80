"""Fail if a file includes a header of a room that its own room may not use."""

import pathlib
import re
import sys
from collections.abc import Iterator

import tree

LIB, NET = "libffrecord", "libffrecord/net"
SOURCE = {f"{LIB}/{room}" for room in ("base", "io", "source")}
RECORD = SOURCE | {f"{LIB}/format"}
RECORD |= {f"{LIB}/record/{room}" for room in ("index", "read", "write", "check")}
RPC = SOURCE | {f"{LIB}/format"} | {f"{NET}/{room}" for room in ("protocol", "transport", "rpc")}
STORAGE = RECORD | RPC | {"server/storage", "server/metadata", "server/service"}
SERVICE = STORAGE | {
    f"server/service/{room}"
    for room in ("access", "catalog", "read_ahead", "read", "admin", "core")
}
MAY_INCLUDE: dict[str, set[str]] = {
    f"{LIB}/include": set(),
    f"{LIB}/base": set(),
    f"{LIB}/format": {f"{LIB}/base"},
    f"{LIB}/io": {f"{LIB}/base"},
    f"{LIB}/decode": {f"{LIB}/base"},
    f"{LIB}/source": SOURCE,
    f"{LIB}/record/index": SOURCE | {f"{LIB}/format"},
    f"{LIB}/record/read": SOURCE | {f"{LIB}/format", f"{LIB}/record/index"},
    f"{LIB}/record/write": SOURCE | {f"{LIB}/format", f"{LIB}/record/index"},
    f"{LIB}/record/check": RECORD,
    f"{NET}/protocol": {f"{LIB}/base"},
    f"{NET}/transport": {f"{LIB}/base", f"{NET}/protocol"},
    f"{NET}/rpc": RPC,
    f"{NET}/http": {f"{LIB}/base"},
    f"{LIB}/object_store": SOURCE | {f"{NET}/http"},
    "server/config": {f"{LIB}/base", f"{NET}/protocol", f"{NET}/transport"},
    "server/storage": RECORD,
    "server/metadata": RECORD,
    "server/service": RPC,  # What all its rooms count.
    "server/service/access": RPC | {f"{LIB}/io"},
    "server/service/catalog": STORAGE,
    "server/service/read_ahead": STORAGE | {"server/service/catalog"},
    "server/service/read": STORAGE | {"server/service/read_ahead"},
    "server/service/admin": SERVICE - {"server/service/core"},
    "server/service/core": SERVICE,
    "server": SERVICE | {"server/config"},
    "client/include": set(),
    "client": RPC,
    "client/dataset": RECORD | RPC,
    "client/checkpoint": RECORD | RPC | {"client/dataset", f"{LIB}/object_store"},
    "client/collective": RECORD | RPC,
    "capi": set(),  # Public headers only, of the client too.
    "python/src": set(),  # Public headers only, in angle brackets: our first outside users.
    "tools": set(),
}
# A foreign header has one home; OpenSSL three, for its ciphers and for its sums.
HOME = {
    "liburing.h": f"{LIB}/io",
    "isa-l/": f"{LIB}/base",
    "xxhash.h": f"{LIB}/base",
    "zstd.h": f"{LIB}/format",
    "jpeglib.h": f"{LIB}/decode",
    "jerror.h": f"{LIB}/decode",
    "infiniband/": f"{NET}/transport/rdma",
    "sqlite3.h": "server/metadata",
    "spdlog/": "server",
    "CLI/": "server",
    "toml++/": "server/config",
    "httplib.h": "server/service/admin",
    "openssl/": (f"{NET}/transport/tls/", "server/service/", f"{LIB}/object_store/"),
    "curl/": f"{NET}/http",
    "pybind11/": "python/src",
}
INCLUDE = re.compile(r'\s*#\s*include\s*["<]([\w./-]+)[">]')
FREE = ("tests", "benchmarks", "docs")  # They may include anything.


def room_of(path: str) -> str:
    return max((room for room in MAY_INCLUDE if path.startswith(room + "/")), key=len, default="")


def violations(root: pathlib.Path) -> Iterator[str]:
    for path in tree.files(root, ".h", ".cpp"):
        name = path.relative_to(root).as_posix()
        if name.startswith(FREE):
            continue
        room = room_of(name)
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            if not (match := INCLUDE.match(line)):
                continue
            target = match[1]
            other = room_of(target)
            if room and other and other not in MAY_INCLUDE[room] | {room}:
                yield f"{name}:{number}: {room} may not include {other}"
            for header, home in HOME.items():
                homes = (f"{home}/",) if isinstance(home, str) else home
                if target.startswith(header) and not name.startswith(homes):
                    yield f"{name}:{number}: {header} belongs in {' or '.join(homes)}"


if __name__ == "__main__":
    sys.exit("\n".join(violations(pathlib.Path(sys.argv[1]))) or 0)
