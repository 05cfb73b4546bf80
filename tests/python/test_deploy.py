"""Goal: the files in server/deploy/ fit the daemon and each other.

Method: neither Docker nor Kubernetes is here, so nothing of it runs. The files are parsed; the real
ffrecordd and etcd check the settings and flags that they give; names, ports, paths and packages
that have to agree are compared.
"""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from conftest import ROOT
from daemon import program
from ffrecord import _ffrecord

DEPLOY = ROOT / "server" / "deploy"


def compose() -> dict[str, Any]:
    return dict(yaml.safe_load((DEPLOY / "compose.yaml").read_text()))


def kubernetes() -> dict[tuple[str, str], dict[str, Any]]:
    """All objects, by kind and name."""
    found = {}
    for name in ("etcd.yaml", "ffrecordd.yaml"):
        for one in yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text()):
            found[one["kind"], one["metadata"]["name"]] = one
    return found


def pod(name: str) -> dict[str, Any]:
    return dict(kubernetes()["StatefulSet", name]["spec"]["template"]["spec"])


def settings_of(text: str, arguments: list[str], folder: Path) -> dict[str, Any]:
    """What ffrecordd makes of a file and flags; they must be good."""
    import tomllib

    path = folder / "ffrecordd.toml"
    path.write_text(text)
    flags = [one for one in arguments if not one.startswith("--config=")]
    assert len(flags) == len(arguments) - 1
    command = [program(), "--config", str(path), *flags]
    for request in ("--check-config", "--print-config"):
        done = subprocess.run(
            [*command, request], capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr
    return tomllib.loads(done.stdout)


def coordinators(settings: dict[str, Any]) -> list[str]:
    return list(settings["coordinator"].removeprefix("etcd:http://").split(","))


def test_compose_gives_settings_that_the_daemon_takes(tmp_path: Path) -> None:
    file = compose()
    text = (DEPLOY / "ffrecordd.toml").read_text()
    services = file["services"]
    nodes = {name: one for name, one in services.items() if name.startswith("node-")}
    members = [name for name in services if name.startswith("etcd-")]
    assert len(nodes) == len(members) == 3

    for name, service in nodes.items():
        settings = settings_of(text, service["command"], tmp_path)
        assert settings["node"] == name
        assert settings["advertise"] == f"{name}:{settings['listen'].rpartition(':')[2]}"
        assert coordinators(settings) == [f"{one}:2379" for one in members]
        # Paths inside are those that are mounted.
        mounts = dict(one.split(":")[:2] for one in service["volumes"])
        assert mounts[name] == "/data"
        assert settings["data"].startswith("/data/")
        assert f"--config={mounts['./ffrecordd.toml']}" in service["command"]
        assert [settings["token_keys"], settings["admin_token_file"]] == [
            f"/run/secrets/{secret}" for secret in service["secrets"]
        ]
        port = settings["admin"].rpartition(":")[2]
        assert f"http://127.0.0.1:{port}/readyz" in service["healthcheck"]["test"]
        assert set(service["depends_on"]) == set(members)
    for name in members:
        port = next(one for one in services[name]["command"] if "listen-client-urls" in one)[-4:]
        assert f"http://127.0.0.1:{port}/health" in services[name]["healthcheck"]["test"]
    volumes = {one.split(":")[0] for service in services.values() for one in service["volumes"]}
    assert {one for one in volumes if not one.startswith(".")} == set(file["volumes"])
    wanted = {one for service in services.values() for one in service.get("secrets", ())}
    assert wanted == set(file["secrets"])
    build = services["etcd-1"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).exists()
    for name in (*nodes, *members):
        assert services[name]["image"] == "ffrecord"


def test_prometheus_and_grafana_of_compose_see_the_daemons(tmp_path: Path) -> None:
    services = compose()["services"]
    mounts = {
        name: {inside: outside for outside, inside in (one.split(":")[:2] for one in each)}
        for name in ("prometheus", "grafana")
        for each in [services[name]["volumes"]]
    }
    for paths in mounts.values():
        for outside in paths.values():
            assert not outside.startswith(".") or (DEPLOY / outside).is_file(), outside

    scraping = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    assert set(scraping["rule_files"]) <= set(mounts["prometheus"])
    (job,) = scraping["scrape_configs"]
    (targets,) = job["static_configs"]
    assert set(targets["targets"]) == {f"{one}:9401" for one in services if one[:5] == "node-"}
    (secret,) = services["prometheus"]["secrets"]
    assert job["authorization"]["credentials_file"] == f"/run/secrets/{secret}"

    (source,) = yaml.safe_load((DEPLOY / "grafana" / "datasources.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (boards,) = yaml.safe_load((DEPLOY / "grafana" / "dashboards.yaml").read_text())["providers"]
    shown = [one for one in mounts["grafana"] if one.startswith(boards["options"]["path"] + "/")]
    assert [Path(mounts["grafana"][one]).name for one in shown] == ["grafana.json"]

    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool here: Prometheus's own check of its settings did not run")
    text = (DEPLOY / "prometheus.yml").read_text()
    (tmp_path / "token").write_text("x" * 16)
    text = text.replace("/run/secrets/prometheus-token", str(tmp_path / "token"))
    rules = str((DEPLOY / mounts["prometheus"]["/etc/prometheus/alerts.yml"]).resolve())
    (tmp_path / "prometheus.yml").write_text(text.replace("/etc/prometheus/alerts.yml", rules))
    done = subprocess.run(
        [promtool, "check", "config", str(tmp_path / "prometheus.yml")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rules found" in done.stdout


def test_kubernetes_gives_settings_that_the_daemon_takes(tmp_path: Path) -> None:
    objects = kubernetes()
    spec = pod("ffrecordd")
    (container,) = spec["containers"]
    (keys,) = spec["initContainers"]
    name = objects["StatefulSet", "ffrecordd"]["metadata"]["name"]
    arguments = [one.replace("$(POD_NAME)", f"{name}-0") for one in container["args"]]
    text = objects["ConfigMap", "ffrecordd"]["data"]["ffrecordd.toml"]
    settings = settings_of(text, arguments, tmp_path)

    service = objects["Service", objects["StatefulSet", name]["spec"]["serviceName"]]
    assert settings["node"] == f"{name}-0"
    assert settings["advertise"] == f"{name}-0.{service['metadata']['name']}:9400"
    etcd = objects["StatefulSet", "ffrecord-etcd"]["spec"]
    assert coordinators(settings) == [
        f"ffrecord-etcd-{number}.{etcd['serviceName']}:2379" for number in range(etcd["replicas"])
    ]
    # Ports.
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert ports == {one["name"]: one["port"] for one in service["spec"]["ports"]}
    assert settings["listen"] == f"0.0.0.0:{ports['data']}"
    assert settings["admin"] == f"0.0.0.0:{ports['admin']}"
    # Folders and secrets.
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    assert settings["data"].startswith(f"{mounts['data']}/")
    assert f"--config={mounts['config']}/ffrecordd.toml" in container["args"]
    secrets = {settings["token_keys"], settings["admin_token_file"]}
    copied = {one.replace("/secrets", mounts["own-keys"]) for one in keys["command"][3:-1]}
    assert secrets == copied
    assert keys["command"][:3] == ["install", "-m", "400"]
    assert keys["command"][-1] == mounts["own-keys"]
    volumes = {one["name"] for one in spec["volumes"]} | {"data"}
    assert volumes == set(mounts) | {one["name"] for one in keys["volumeMounts"]}
    # A disruption leaves a replica.
    assert objects["PodDisruptionBudget", name]["spec"]["maxUnavailable"] < settings["replicas"]
    assert objects["StatefulSet", name]["spec"]["minReadySeconds"] > settings["lease_s"]


def test_selectors_select_the_pods_and_probes_ask_for_pages_that_there_are() -> None:
    objects = kubernetes()
    pages = (ROOT / "server" / "service" / "admin" / "admin_server.cpp").read_text()
    guide = (ROOT / "docs" / "guides" / "daemon.md").read_text()
    for name in ("ffrecordd", "ffrecord-etcd"):
        labels = objects["StatefulSet", name]["spec"]["template"]["metadata"]["labels"]
        assert objects["StatefulSet", name]["spec"]["selector"]["matchLabels"] == labels
        assert objects["Service", name]["spec"]["selector"] == labels
        assert objects["Service", name]["spec"]["clusterIP"] == "None"
        assert objects["PodDisruptionBudget", name]["spec"]["selector"]["matchLabels"] == labels
        (container,) = pod(name)["containers"]
        ports = {one["name"] for one in container["ports"]}
        for kind, probe in container.items():
            if kind.endswith("Probe"):
                assert probe["httpGet"]["port"] in ports, (name, kind)
    (container,) = pod("ffrecordd")["containers"]
    asked = {kind: one["httpGet"]["path"] for kind, one in container.items() if "Probe" in kind}
    assert asked == {
        "startupProbe": "/healthz",
        "readinessProbe": "/readyz",
        "livenessProbe": "/healthz",
    }
    for path in asked.values():
        assert f'http.Get("{path}"' in pages
        assert f"| `{path}` |" in guide


def test_the_flags_of_etcd_exist_and_its_members_agree() -> None:
    etcd = shutil.which("etcd")
    if etcd is None:
        pytest.skip("no etcd here: the package etcd-server is not installed")
    done = subprocess.run([etcd, "--help"], capture_output=True, text=True, check=False, timeout=60)
    known = set(re.findall(r"--[a-z-]+", done.stdout + done.stderr))
    services = compose()["services"]
    members = {name: one["command"] for name, one in services.items() if name[:5] == "etcd-"}
    (container,) = pod("ffrecord-etcd")["containers"]
    service = kubernetes()["StatefulSet", "ffrecord-etcd"]["spec"]["serviceName"]
    for number in range(3):
        name = f"ffrecord-etcd-{number}"
        members[f"{name}.{service}"] = [
            one.replace("$(POD_NAME)", name) for one in container["args"]
        ]
    for host, arguments in members.items():
        flags = dict(one.split("=", 1) for one in arguments)
        assert set(flags) <= known, set(flags) - known
        assert flags["--advertise-client-urls"] == f"http://{host}:2379"
        peer = flags["--initial-advertise-peer-urls"]
        assert peer == f"http://{host}:2380"
        assert f"{flags['--name']}={peer}" in flags["--initial-cluster"].split(",")
        assert flags["--initial-cluster"].count("=") == 3
        assert flags["--data-dir"].startswith("/data/")


def test_the_image_builds_what_there_is_and_has_the_daemons_libraries() -> None:
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    options = set(re.findall(r"-D(\w+)=", text)) - {"optimization", "b_ndebug"}
    meson = (ROOT / "meson_options.txt").read_text()
    assert options <= set(re.findall(r"option\('(\w+)'", meson)), options
    assert "ninja -C /build server/ffrecordd" in text
    for source in re.findall(r"^COPY (\S+)", text, re.MULTILINE):
        assert source.startswith("--from") or (ROOT / source).exists(), source
    user = re.search(r"--uid (\d+)", text)
    assert user is not None
    assert f"USER {user[1]}" in text
    for name in ("ffrecordd", "ffrecord-etcd"):
        assert pod(name)["securityContext"]["runAsUser"] == int(user[1])
    assert re.search(r"EXPOSE 9400 9401", text)

    if shutil.which("dpkg") is None or shutil.which("readelf") is None:
        pytest.skip("no dpkg here: which packages have the libraries is not known")
    *_, client, daemon = (one.split("&&")[0].split() for one in text.split("recommends")[1:])
    extension = _ffrecord.__file__
    for installed, file in ((daemon, program()), (client, program()), (client, extension)):
        check_libraries(installed, file)


def test_a_container_without_arguments_refuses_to_start_without_keys(tmp_path: Path) -> None:
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    arguments = [
        one.replace("/data", str(tmp_path)).replace("/run/secrets", str(tmp_path))
        for one in json.loads(text.rpartition("\nCMD ")[2])
    ]
    health = re.search(r"^HEALTHCHECK .*CMD (.*)$", text, re.MULTILINE)
    assert health is not None
    admin = next(one for one in arguments if one.startswith("--admin=")).partition("=")[2]
    assert f"http://{admin}/healthz" in json.loads(health[1])

    command = [program(), *arguments, "--check-config"]
    # The check does not look for keys, a start does.
    start = [one.replace(":9400", ":0").replace(":9401", ":0") for one in command[:-1]]
    without = subprocess.run(start, capture_output=True, text=True, check=False, timeout=60)
    (tmp_path / "token-keys").write_text("ab" * 32 + "\n")
    (tmp_path / "token-keys").chmod(0o600)
    with_keys = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    assert without.returncode != 0
    assert "token-keys" in without.stderr
    assert with_keys.returncode == 0, with_keys.stderr


def check_libraries(installed: list[str], file: str) -> None:
    """The packages of the libraries that a file is linked with are installed."""
    listed = subprocess.run(
        ["ldd", file], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    paths = dict(re.findall(r"(\S+) => (/\S+)", listed))
    needed = subprocess.run(
        ["readelf", "-d", file], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    for library in re.findall(r"NEEDED.*\[(\S+)\]", needed):
        if library not in paths or library.startswith(("libc.", "ld-", "libgcc_s", "libm.")):
            continue  # Of every image.
        owner = subprocess.run(
            ["dpkg", "-S", str(Path(paths[library]).resolve())],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        ).stdout.split(":")[0]
        # Elsewhere than on Debian, and with a library that was built by hand, nobody owns it.
        assert not owner or owner in installed, f"{library} is in {owner}"
