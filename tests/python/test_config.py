"""Goal: a daemon's settings are what its file and flags say, and a mistake in them is told.

Method: the real ffrecordd, asked what it would do; its answer is read with Python's own parser of
TOML. What a file gets wrong must be named with its line.
"""

import os
import subprocess
import tomllib
from pathlib import Path

import pytest

import cli
from daemon import Daemon, program

KEYS_MAX = 45  # 18 of them of clusters alone.


def ffrecordd(*arguments: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program(), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, **env},
    )


def printed(*arguments: str | Path, **env: str) -> dict[str, object]:
    done = ffrecordd("--print-config", *arguments, **env)
    assert done.returncode == 0, done.stderr
    return tomllib.loads(done.stdout)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "ffrecordd.toml"
    path.write_text('data = "/srv/a"\ncores = 3\nlog_level = "warn"\n')
    return path


def test_the_file_is_overridden_by_flags_and_the_rest_is_as_ever(written: Path) -> None:
    defaults = printed()
    settings = printed("--config", written, "--cores", "5", "--io-engine", "threads")

    assert len(defaults) <= KEYS_MAX
    changed = {key for key in defaults if settings[key] != defaults[key]}
    assert changed == {"data", "cores", "log_level", "io_engine"}
    assert settings["data"] == "/srv/a"
    assert settings["cores"] == 5
    assert settings["log_level"] == "warn"
    assert settings["io_engine"] == "threads"
    assert printed(FFRECORD_CONFIG=str(written))["cores"] == 3


def test_several_data_folders_are_a_list_and_flags_replace_it(tmp_path: Path) -> None:
    path = tmp_path / "two.toml"
    path.write_text('data = ["/srv/a", "/srv/b"]\nmetadata = "/srv/c"\n')
    assert printed("--config", path)["data"] == ["/srv/a", "/srv/b"]
    assert printed("--config", path)["metadata"] == "/srv/c"
    assert printed("--config", path, "--data", "x")["data"] == "x"
    assert printed("--data", "x", "--data", 'y"z')["data"] == ["x", 'y"z']


def test_an_empty_name_of_a_file_is_an_error_and_not_the_defaults(written: Path) -> None:
    for arguments in (("--config", ""), ("--config=",)):
        done = ffrecordd("--print-config", "--data", "d", *arguments)
        assert done.returncode == 2, done.stdout
        assert "--config" in done.stderr, done.stderr
    done = ffrecordd("--print-config", "--data", "d", FFRECORD_CONFIG="")
    assert done.returncode == 2, done.stdout
    assert "FFRECORD_CONFIG" in done.stderr, done.stderr
    # The flag is what counts.
    done = ffrecordd("--print-config", "--config", written, FFRECORD_CONFIG="")
    assert done.returncode == 0, done.stderr


def test_what_is_printed_is_a_file_that_says_the_same(tmp_path: Path) -> None:
    odd = 'a "quoted" \\ folder\t\x01 \N{SNOWMAN}'
    first = printed("--data", odd, "--connections", "17", "--transport", "tcp")
    assert first["data"] == odd
    path = tmp_path / "printed.toml"
    path.write_text(ffrecordd("--print-config", "--data", odd, "--connections", "17").stdout)

    again = printed("--config", path, "--transport", "tcp")

    assert again == first


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("data = 'd'\ncorse = 2\n", 2, "unknown key 'corse'; did you mean 'cores'?"),
        ("data = 'd'\n\nio-engine = 'auto'\n", 3, "did you mean 'io_engine'?"),
        ("insecure = true\ndata = 'd'\n", 1, "unknown key 'insecure'"),
        ("data = ['d', 7]\n", 1, "data: must be a list of texts"),
        ("data = []\n", 1, "data: must be a list of texts"),
        ("listen = ['a', 'b']\n", 1, "listen: must be a text"),
        ("cores = '2'\n", 1, "cores: must be a whole number from 0 to 1024"),
        ("cores = 2.0\n", 1, "cores: must be"),
        ("cores = 1025\n", 1, "not 1025"),
        ("cores = -1\n", 1, "not -1"),
        ("data = 7\n", 1, "data: must be a text"),
        ("log_level = 'loud'\n", 1, 'one of debug, info, warn, error, not "loud"'),
        ("[server]\ncores = 2\n", 1, "unknown key 'server'"),
        ("data = 'd'\ndata = 'e'\n", 2, "data"),
        ("data = 'd'\ncores = = 2\n", 2, ""),
        ("k" * 100_000 + " = 1\n", 1, "unknown key 'kkk"),
    ],
)
def test_a_mistake_is_told_with_its_line(tmp_path: Path, text: str, line: int, words: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)

    done = ffrecordd("--check-config", "--config", path)

    assert done.returncode == 2
    assert f"{path}:{line}: " in done.stderr
    assert words in done.stderr
    assert len(done.stderr) < 1000


def nested_quotas(count: int) -> str:
    return ",".join("a/" * depth + "=1G" for depth in range(count))


IN_CLUSTER = ["--cluster", "c", "--coordinator", "etcd:http://127.0.0.1:2379"]


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (["--listen", "0.0.0.0:0"], 2, "--insecure"),
        (["--listen", "0.0.0.0:0", "--insecure"], 0, ""),
        (["--listen", "0.0.0.0:0", "--token-keys", "keys"], 0, ""),
        (["--admin", "0.0.0.0:9401", "--token-keys", "keys"], 2, "--insecure"),
        (["--admin", "127.0.0.1:9401"], 0, ""),
        (["--admin", "0.0.0.0:9401", "--admin-token-file", "t", "--insecure"], 0, ""),
        (["--listen", "0.0.0.0:0", "--tls-cert", "c", "--tls-key", "k"], 2, "--tls-ca"),
        (["--listen", "0.0.0.0:0", "--tls-cert", "c", "--tls-key", "k", "--tls-ca", "a"], 0, ""),
        (["--adopt"], 2, "--adopt takes names into a cluster: give --cluster"),
        (["--tls-cert", "c"], 2, "tls_cert and tls_key belong together"),
        (["--tls-ca", "a"], 2, "give tls_cert and tls_key too"),
        (["--quotas", "train/=500G, runs/=2T,=3000"], 0, ""),
        (["--quotas", "train/=many"], 2, "not 'train/=many'"),
        (["--quotas", "a/=1G,a/=2G"], 2, "each prefix once"),
        (["--quotas", "a b=1G"], 2, "quotas: must be a list like"),
        ([*IN_CLUSTER, "--quotas", nested_quotas(6) + ",b/=1G"], 0, ""),
        ([*IN_CLUSTER, "--quotas", nested_quotas(7)], 2, "7 of them hold for one name"),
        (["--quotas", nested_quotas(7)], 0, ""),
        (["--tenant-weights", "a/=100, b/=1,=2", "--token-keys", "keys"], 0, ""),
        (["--tenant-weights", "a/=0", "--token-keys", "keys"], 2, "from 1 to 100"),
        (["--tenant-weights", "a/=101", "--token-keys", "keys"], 2, "not 'a/=101'"),
        (["--tenant-weights", "a/=1.5", "--token-keys", "keys"], 2, "not 'a/=1.5'"),
        (["--tenant-weights", "a/=-1", "--token-keys", "keys"], 2, "not 'a/=-1'"),
        (["--tenant-weights", "a/=1,a/=2", "--token-keys", "keys"], 2, "each prefix once"),
        (["--dscp", "urgent=64"], 2, "dscp: must be a list"),
        (["--dscp", "bulk=1"], 2, "not 'bulk'"),
        (["--socket-priority", "urgent=7"], 2, "socket_priority: must be a list"),
        (["--tenant-weights", "a/", "--token-keys", "keys"], 2, "tenant_weights: must be a list"),
        (["--tenant-weights", "a/=2"], 2, "give token_keys too"),
        ([*IN_CLUSTER, "--origins", "s3://b, s3://b/c/ , /mnt/x"], 0, ""),
        ([*IN_CLUSTER, "--origins", "/mnt/../x"], 2, "origins: must be a list of buckets"),
        ([*IN_CLUSTER, "--origins", "/"], 2, "not '/'"),
        ([*IN_CLUSTER, "--origins", "mnt/x"], 2, "not 'mnt/x'"),
        ([*IN_CLUSTER, "--origins", "s3://b/x*"], 2, "not 's3://b/x*'"),
        ([*IN_CLUSTER, "--origins", "http://host/x"], 2, "not 'http://host/x'"),
        (["--origins", "/mnt/x"], 2, "only the nodes of a cluster fetch files from origins"),
        (["--origin-cache-mib", "512"], 2, "--origin-cache-mib: must be"),
        (["--rdma-devices", "mlx5_0,mlx4_0:2", "--rdma-service-level", "15"], 0, ""),
        (["--rdma-devices", "mlx5_0,"], 2, "rdma_devices: must be a list like"),
        (["--rdma-traffic-class", "256"], 2, "not 256"),
        (["--rdma-service-level", "16"], 2, "not 16"),
        (["--admin", "nonsense:port"], 2, "admin: 'nonsense:port' is not a valid address"),
        (["--data", ""], 2, "no folder for the data"),
        (["--forget-disk", "0123"], 2, "32 hex digits, not '0123'"),
        (["--forget-disk", "0" * 32, "--missing-disks", "2"], 0, ""),
        (["--cores", "2", "--cores", "3"], 2, "--cores"),
        (["--cores", "many"], 2, "--cores: must be a whole number"),
        (["--io-engine", "magic"], 2, "--io-engine: must be one of auto, io_uring, threads"),
        (["--config", "/nowhere/at/all"], 4, "/nowhere/at/all"),
        (["--config", "/"], 4, "cannot read the settings in /"),
    ],
)
def test_settings_that_would_not_do_are_refused_before_anything_starts(
    tmp_path: Path, flags: list[str], code: int, words: str
) -> None:
    done = ffrecordd("--data", tmp_path / "data", "--check-config", *flags)

    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert not (tmp_path / "data").exists()


def test_a_daemon_serves_as_its_file_says(tmp_path: Path) -> None:
    path = tmp_path / "ffrecordd.toml"
    path.write_text('transport = "tcp"\nio_engine = "threads"\ncores = 1\n')

    with Daemon(tmp_path / "data", "--config", str(path)) as daemon:
        assert any("transports=tcp " in line and "engine=threads" in line for line in daemon.log)


def test_the_command_line_checks_a_file_with_the_daemon_that_is_installed(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(Path(program()).parent), prepend=os.pathsep)
    assert "good" in cli.ok("ffrecord", "config", "check", written)

    written.write_text("lisen = 'localhost'\n")
    refused = cli.run("ffrecord", "config", "check", written)

    assert refused.returncode == 2
    assert f"{written}:1: unknown key 'lisen'; did you mean 'listen'?" in refused.stderr
