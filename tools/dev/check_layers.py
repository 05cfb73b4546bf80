"""Fail if a file includes a header of a room that its own room may not use."""

import pathlib
import re
import sys
from collections.abc import Iterator

import tree

LIB, NET = "libffrecord", "libffrecord/net"
BASE, SOURCE = {f"{LIB}/base"}, {f"{LIB}/{room}" for room in ("base", "io", "source")}
FORMAT = {f"{LIB}/base", f"{LIB}/format", f"{LIB}/io"}
TRANSPORT = {f"{LIB}/base", f"{NET}/protocol", f"{NET}/transport"}
SERVICE = "server/service"
SERVICE_ROOMS = {
    f"{SERVICE}/{room}"
    for room in ("access", "admin", "catalog", "cluster", "origin", "read", "read_ahead")
}
MAY_INCLUDE: dict[str, set[str]] = {
    f"{LIB}/include": set(),
    f"{LIB}/base": set(),
    f"{LIB}/pace": BASE,
    f"{LIB}/format": BASE,
    f"{LIB}/io": BASE,
    f"{LIB}/decode": BASE,
    f"{LIB}/source": SOURCE,
    f"{LIB}/record/index": SOURCE | FORMAT,
    f"{LIB}/record/read": SOURCE | FORMAT | {f"{LIB}/record/index"},
    f"{LIB}/record/stream": BASE | {f"{LIB}/pace"},
    f"{LIB}/record/write": SOURCE | FORMAT | {f"{LIB}/record/index"},
    f"{LIB}/record/check": {
        f"{LIB}/{room}" for room in ("base", "format", "source", "record/index", "record/write")
    },
    f"{NET}/protocol": BASE,
    f"{NET}/transport": BASE | {f"{NET}/protocol"},
    f"{NET}/rpc": TRANSPORT | SOURCE | FORMAT | {f"{LIB}/pace"},
    f"{NET}/replicas": TRANSPORT | SOURCE | FORMAT | {f"{LIB}/pace", f"{NET}/rpc"},
    f"{NET}/http": BASE | {f"{LIB}/pace"},
    f"{LIB}/object_store": BASE | {f"{LIB}/source", f"{NET}/http"},
    "server/config": BASE | {f"{NET}/transport"},
    "server/storage": FORMAT,
    "server/metadata": BASE | {f"{LIB}/io", f"{NET}/http"},
    "server/monitoring": BASE,
    "server/cluster": BASE | {f"{LIB}/format", "server/metadata"},
    SERVICE: BASE | {f"{NET}/protocol"},  # All its rooms count in it.
    f"{SERVICE}/access": TRANSPORT | {f"{LIB}/io"},
    f"{SERVICE}/catalog": BASE
    | {f"{LIB}/format", f"{NET}/protocol", "server/metadata", "server/storage"},
    f"{SERVICE}/cluster": TRANSPORT
    | FORMAT
    | {f"{NET}/rpc", SERVICE, f"{SERVICE}/access", f"{SERVICE}/catalog"}
    | {"server/cluster", "server/metadata", "server/storage"},
    f"{SERVICE}/origin": FORMAT
    | {f"{LIB}/object_store", SERVICE, f"{SERVICE}/cluster", "server/storage"},
    f"{SERVICE}/read_ahead": SOURCE
    | FORMAT
    | {f"{LIB}/record/index", f"{NET}/protocol", SERVICE, f"{SERVICE}/catalog", "server/storage"},
    f"{SERVICE}/read": TRANSPORT | SOURCE | {SERVICE, f"{SERVICE}/read_ahead", "server/storage"},
    f"{SERVICE}/admin": TRANSPORT | SERVICE_ROOMS | {SERVICE, "server/storage"},
    f"{SERVICE}/jobs": BASE | {SERVICE, "server/storage"},
    f"{SERVICE}/connection": TRANSPORT
    | SERVICE_ROOMS
    | {f"{LIB}/pace", SERVICE, f"{SERVICE}/jobs", "server/storage"},
    f"{SERVICE}/core": TRANSPORT
    | SERVICE_ROOMS
    | {f"{SERVICE}/connection", f"{SERVICE}/jobs"}
    | {f"{LIB}/io", SERVICE, "server/storage"},
    "server": {f"{NET}/transport", "server/config", "server/metadata", "server/monitoring"}
    | {f"{SERVICE}/access", f"{SERVICE}/core"},
    "client/include": set(),
    "client": {f"{NET}/transport"},
    "client/dataset": SOURCE
    | FORMAT
    | {f"{LIB}/record/read", f"{LIB}/object_store", f"{NET}/protocol"}
    | {f"{NET}/http", f"{NET}/replicas", f"{NET}/rpc"},
    "client/checkpoint": SOURCE | FORMAT | {f"{LIB}/object_store", f"{NET}/rpc", "client/dataset"},
    "client/collective": TRANSPORT | {f"{LIB}/pace"},
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
    "nlohmann/": ("server/metadata/", f"{LIB}/object_store/"),
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
