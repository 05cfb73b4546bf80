"""Goal: the page tells an operator what is wrong with a cluster, and the command that helps.

Method: a browser shows the page from a server that gives the facts of a cluster as a node would,
with one fault after the other, and names that would be markup if the page trusted them.
"""

import http.server
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from browser import shown
from conftest import ROOT

PAGE = (ROOT / "server" / "monitoring" / "dashboard.html").read_bytes()


def facts(**changes: object) -> dict[str, Any]:
    """Of a cluster of two nodes where all is well."""
    nodes = [
        {
            **{"id": f"n{i}", "address": f"10.0.0.{i}:9400", "domain": f"r{i}", "weight": 100},
            **{"state": "in", "is_up": True, "slots": 4096},
        }
        for i in (1, 2)
    ]
    well: dict[str, Any] = {
        **{"node": "n1", "leased": True, "trouble": "", "frozen": False, "why_frozen": ""},
        **{"names_lost": 0, "coordinator_silent_ms": 0, "unheld": 0, "lacking": 0, "alone": 0},
        **{"refused": 0, "refusals": [], "missing": 0, "missing_bytes": 0, "moving": False},
        **{"adopting": 0, "leader": "n2", "map_version": 3, "names": 7, "replicas": 2},
        "nodes": nodes,
    }
    return well | changes


@contextmanager
def served(answers: dict[str, tuple[int, bytes]]) -> Iterator[str]:
    """A server with these pages."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answers.get(self.path, (404, b"no such page"))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def page_of(cluster: tuple[int, bytes], folder: Path) -> str:
    answers = {
        "/": (200, PAGE),
        "/metrics": (200, b"ffrecord_cluster_leased 1\n"),
        "/datasets": (200, b'{"datasets": [], "more": false}'),
        "/cluster": cluster,
    }
    with served(answers) as url:
        page = shown(url, folder)
    found = re.search(r'<section id="cluster".*?</section>', page, re.DOTALL)
    assert found is not None
    return found[0]


def test_each_fault_is_told_with_its_command(tmp_path: Path) -> None:
    first, second = facts()["nodes"]
    waiting = {**second, "id": "n3", "state": "waiting", "is_up": False, "slots": 0, "address": ""}
    down = {**second, "is_up": False, "domain": "<b>x</b>"}
    bad = facts(
        **{"frozen": True, "why_frozen": "it went back", "names_lost": 4, "unheld": 2},
        **{"coordinator_silent_ms": 9000, "lacking": 5, "alone": 1, "refused": 6, "missing": 9},
        **{"missing_bytes": 3 << 20, "moving": True, "adopting": 8, "leader": ""},
        refusals=[{"node": "n4", "why": "another authority"}],
        nodes=[first, down, waiting],
    )

    page = page_of((200, json.dumps(bad).encode()), tmp_path)

    for line in (
        "nothing is removed from disks: it went back",
        "4 names are missing there. Run ffrecord cluster rebuild ffrecord://10.0.0.1:9400, then"
        " ffrecord cluster confirm ffrecord://10.0.0.1:9400",
        "etcd has been silent for 9.0 s",
        "2 extents are on no node that answers: ffrecord cluster lost",
        "5 extents lack a replica, 1 of them have none that is up",
        "no room here for 6 extents",
        "n4 is refused: another authority",
        "n3 waits for approval: ffrecord cluster approve ffrecord://10.0.0.1:9400 n3",
    ):
        assert re.search(f'<td class="bad">[^<]*{re.escape(line)}', page), (line, page)
    for line in (
        "7 extents, 3.0 MiB, are left to copy to n1",
        "extents follow a new slot map",
        "8 names are not in the cluster yet",
    ):
        assert f"<td>{line}</td>" in page
    assert "no node leads; slot map 3; 7 names, 2 replicas" in page
    assert '<td>50.0 %</td><td>none</td><td class="bad">in, down</td>' in page
    assert '<td>none</td><td class="bad">waiting</td>' in page
    assert "&lt;b&gt;x&lt;/b&gt;" in page
    assert "all nodes are up" not in page


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        ((200, json.dumps(facts()).encode()), "<td>all nodes are up, nothing moves</td>"),
        (
            (200, json.dumps(facts(leased=False, trouble="it waits")).encode()),
            '<td class="bad">n1 has no lease and takes no part: it waits</td>',
        ),
        ((503, b"not yet"), "<th>not yet</th>"),
    ],
)
def test_the_state_of_the_node_is_shown(
    tmp_path: Path, answer: tuple[int, bytes], line: str
) -> None:
    assert line in page_of(answer, tmp_path)
