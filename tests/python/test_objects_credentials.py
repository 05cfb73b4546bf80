"""Goal: a store is asked with the credentials that every cloud tool would find, renewed in time.

Method: one small server plays the services of instances, containers and roles.
"""

# ruff: noqa: ANN401 - what WSGI hands over has no better type

import hashlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ffrecord
from eventually import eventually
from ffrecord import UnavailableError
from files_at_a_store import COUNT, at_a_server, at_a_store, read_again, three_files
from object_store import Store
from range_server import RangeServer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return three_files(tmp_path_factory.mktemp("objects"))


@pytest.fixture(scope="module")
def store(folder: Path) -> Iterator[Store]:
    yield from at_a_store(folder)


@pytest.fixture
def served(folder: Path) -> Iterator[RangeServer]:
    yield from at_a_server(folder)


class Identities:
    """The services that give credentials, on one port; they hold for `holds_s`."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, dict[str, str], str]] = []
        self.holds_s = 3600.0
        self.status = 200
        self.page = ""
        """What it answers with instead, as a proxy does."""

    def __call__(self, environ: dict[str, Any], start_response: Any) -> list[bytes]:
        """Answers as each service does."""
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)).decode()
        headers = {name: value for name, value in environ.items() if name.startswith("HTTP_")}
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        body = body or environ["QUERY_STRING"]
        self.asked.append((method, path, headers, body))
        end = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + self.holds_s))
        key = f"KEY{len(self.asked)}"
        text = (
            f'{{"Code": "Success", "AccessKeyId": "{key}", "SecretAccessKey": "s/e+c=",'
            f' "Token": "t", "Expiration": "{end}"}}'
        )
        if path == "/latest/api/token":
            text = "metadata-token"
        elif path.endswith("security-credentials/"):
            text = "the-role"
        elif path == "/federation/credentials":
            milliseconds = int((time.time() + self.holds_s) * 1000)
            text = (
                f'{{"roleCredentials": {{"accessKeyId": "{key}", "secretAccessKey": "s",'
                f' "sessionToken": "t", "expiration": {milliseconds}}}}}'
            )
        elif method == "POST":
            text = (
                f"<R><Credentials><AccessKeyId>{key}</AccessKeyId><SecretAccessKey>s"
                f"</SecretAccessKey><SessionToken>t</SessionToken><Expiration>{end}</Expiration>"
                "</Credentials></R>"
            )
        text = self.page or text
        start_response(f"{self.status} X", [("Content-Length", str(len(text)))])
        return [text.encode()]


@pytest.fixture
def identities(store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """No credentials but those of the services, whose address is `.address`."""
    from werkzeug.serving import WSGIRequestHandler, make_server

    class WithUnderscores(WSGIRequestHandler):
        def make_environ(self) -> Any:  # Leaves out headers whose names have them.
            token = self.headers.get("x-amz-sso_bearer_token", "")
            return {**super().make_environ(), "HTTP_X_AMZ_SSO_BEARER_TOKEN": token}

    services: Any = Identities()
    server = make_server("127.0.0.1", 0, services, threaded=True, request_handler=WithUnderscores)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    services.address = f"http://127.0.0.1:{server.server_port}"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", os.environ["AWS_ENDPOINT_URL"])
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    yield services
    server.shutdown()
    thread.join()


def test_without_credentials_all_places_are_named(identities: Any) -> None:
    with pytest.raises(PermissionError) as caught:
        len(ffrecord.open("s3://bucket/train/"))
    for place in ("AWS_ACCESS_KEY_ID", "WEB_IDENTITY", ".aws/credentials", "CONTAINER", "instance"):
        assert place in str(caught.value)


def test_an_instance_gives_credentials(identities: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", identities.address)
    assert len(ffrecord.open("s3://bucket/train/")) == COUNT
    (put, _, ttl, _), (get, path, token, _), _ = identities.asked
    assert (put, get, path) == ("PUT", "GET", "/latest/meta-data/iam/security-credentials/")
    assert ttl["HTTP_X_AWS_EC2_METADATA_TOKEN_TTL_SECONDS"] == "21600"
    assert token["HTTP_X_AWS_EC2_METADATA_TOKEN"] == "metadata-token"


def test_a_container_gives_credentials(
    identities: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("secret\n")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", identities.address + "/v1?x=y")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(tmp_path / "token"))
    assert len(ffrecord.open("s3://bucket/train/")) == COUNT
    ((_, path, headers, _),) = identities.asked
    assert (path, headers["HTTP_AUTHORIZATION"]) == ("/v1", "secret")


@pytest.mark.parametrize("status", [200, 204, 302])
@pytest.mark.parametrize("kind", ["container", "role"])
def test_a_page_instead_of_credentials_does_not_say_that_access_is_denied(
    identities: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, status: int
) -> None:
    identities.page, identities.status = "<html>Welcome to our network</html>", status
    if kind == "container":
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", identities.address + "/v1")
    else:
        (tmp_path / "jwt").write_text("token")
        monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "jwt"))
        monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/r")
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", identities.address)
    with pytest.raises(UnavailableError, match="gave no credentials"):
        len(ffrecord.open("s3://bucket/train/"))


def test_a_container_token_goes_to_no_other_machine(
    identities: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://192.0.2.1/v1")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", "secret")
    with pytest.raises(PermissionError, match="neither https:// nor on this machine"):
        len(ffrecord.open("s3://bucket/train/"))


def test_a_web_identity_gives_credentials(
    identities: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "jwt"))
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/r")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", identities.address)
    with pytest.raises(PermissionError, match="jwt cannot be read"):
        len(ffrecord.open("s3://bucket/train/"))
    (tmp_path / "jwt").write_text("a.b+c\n")
    assert len(ffrecord.open("s3://bucket/train/")) == COUNT
    ((method, _, _, body),) = identities.asked
    assert method == "POST"
    assert "WebIdentityToken=a.b%2Bc" in body
    assert "RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fr" in body


def test_a_profile_takes_a_role(
    identities: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/config").write_text(
        "[profile job]\nrole_arn = arn:r\nsource_profile = me\nexternal_id = x\n"
    )
    (tmp_path / ".aws/credentials").write_text(
        "[me]\naws_access_key_id = A\naws_secret_access_key = S\n"
    )
    monkeypatch.setenv("AWS_PROFILE", "job")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", identities.address)
    assert len(ffrecord.open("s3://bucket/train/")) == COUNT
    ((_, _, headers, body),) = identities.asked
    assert "ExternalId=x" in body
    assert "Credential=A/" in headers["HTTP_AUTHORIZATION"]


def test_credentials_are_renewed_before_they_end(
    identities: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", identities.address + "/v1")
    reader = ffrecord.open("s3://bucket/train/")
    for i in range(5):
        reader.read([i])
    assert len(identities.asked) == 1  # They hold; nobody is asked all the time.
    identities.holds_s = 2
    reader = ffrecord.open("s3://bucket/train/")
    eventually(lambda: len(reader.read([0])) and len(identities.asked) > 2)
    identities.status = 500

    def why() -> str | None:
        try:
            reader.read([0])
        except UnavailableError as error:
            return str(error)
        return None  # Those of before still hold.

    assert "credentials service" in (eventually(why) or "")
    identities.status = 200
    read_again(reader, [0])


def test_credentials_that_a_store_refuses_as_expired_are_renewed_at_once(
    identities: Any, monkeypatch: pytest.MonkeyPatch, served: RangeServer
) -> None:
    path = sorted(served.files)[0]
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", served.address)
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", identities.address + "/v1")
    reader = ffrecord.open(f"s3://{path[1:]}")
    reader.read([0])
    before = len(served.seen)
    served.fault = lambda number, path: "expired" if number == before + 1 else None
    reader.read([1])
    assert len(identities.asked) == 2
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "old")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "old")
    served.fault = lambda number, path: "expired"
    before = len(served.seen)
    with pytest.raises(PermissionError, match="ExpiredToken"):
        len(ffrecord.open(f"s3://{path[1:]}"))
    assert len(served.seen) <= before + 2  # There are no others to ask with.


def _profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str) -> None:
    (tmp_path / ".aws").mkdir(exist_ok=True)
    (tmp_path / ".aws/config").write_text(config)
    monkeypatch.setenv("AWS_PROFILE", "job")


def test_a_command_gives_credentials_and_renews_them(
    identities: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "give credentials"
    script.write_text(
        f'#!/bin/sh\necho x >>"{tmp_path}/calls"\n'
        'end=$(date -u -d "+$1 seconds" +%Y-%m-%dT%H:%M:%SZ)\n'
        'echo "{\\"Version\\": 1, \\"AccessKeyId\\": \\"K\\", \\"SecretAccessKey\\": \\"s\\",'
        ' \\"SessionToken\\": \\"t\\", \\"Expiration\\": \\"$end\\"}"\n'
    )
    script.chmod(0o700)
    _profile(
        tmp_path,
        monkeypatch,
        f'[profile job]\ncredential_process = "{script}" 2\n'
        "aws_access_key_id = A\naws_secret_access_key = S\n",
    )
    reader = ffrecord.open("s3://bucket/train/")
    assert len(reader) == COUNT
    calls = tmp_path / "calls"
    eventually(lambda: len(reader.read([0])) and calls.read_text().startswith("x\nx\n"))


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("exit 3", "status 3"),
        ("/nowhere/at-all 2>/dev/null", "status 127"),
        ("echo no secret", "JSON"),
        ("echo '{\"Version\": 1}'", "no AccessKeyId"),
        ("kill -9 $$", "killed"),
        ("head -c 300000 /dev/zero", "wrote more"),
    ],
)
def test_a_command_that_fails_ends_the_search(
    identities: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str, why: str
) -> None:
    _profile(tmp_path, monkeypatch, f"[profile job]\ncredential_process = {command}\n")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", identities.address + "/v1")
    with pytest.raises(
        PermissionError, match=r"credential_process of profile job.*" + why
    ) as found:
        len(ffrecord.open("s3://bucket/train/"))
    assert "secret" not in str(found.value).replace("SecretAccessKey", "")
    assert identities.asked == []


def test_keys_of_the_credentials_file_come_before_a_command(
    identities: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _profile(tmp_path, monkeypatch, "[profile job]\ncredential_process = exit 3\n")
    (tmp_path / ".aws/credentials").write_text(
        "[job]\naws_access_key_id = A\naws_secret_access_key = S\n"
    )
    assert len(ffrecord.open("s3://bucket/train/")) == COUNT


_SESSION = (
    "[profile job]\nsso_session = corp\nsso_account_id = 123\nsso_role_name = Reader\n"
    "[sso-session corp]\nsso_region = eu-west-1\nsso_start_url = https://corp.example/start\n"
)
_LEGACY = (
    "[profile job]\nsso_start_url = https://corp.example/start\nsso_region = eu-west-1\n"
    "sso_account_id = 123\nsso_role_name = Reader\n"
)
# What botocore calls the files of the two: the SHA-1 of the session's name, or of the URL.
_TOKENS = {
    _SESSION: "corp",
    _LEGACY: "https://corp.example/start",
}


def _sign_on(tmp_path: Path, config: str, holds_s: float) -> Path:
    name = hashlib.sha1(_TOKENS[config].encode()).hexdigest()
    path = tmp_path / ".aws/sso/cache" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    end = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + holds_s))
    path.write_text(f'{{"accessToken": "bearer", "expiresAt": "{end}", "scopes": ["a"]}}')
    return path


@pytest.mark.parametrize("config", [_SESSION, _LEGACY], ids=["session", "legacy"])
def test_single_sign_on_gives_credentials(
    identities: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, config: str
) -> None:
    _profile(tmp_path, monkeypatch, config)
    monkeypatch.setenv("AWS_ENDPOINT_URL_SSO", identities.address)
    with pytest.raises(PermissionError, match="aws sso login --profile job"):
        len(ffrecord.open("s3://bucket/train/"))
    _sign_on(tmp_path, config, -5)
    with pytest.raises(PermissionError, match=r"expired.*aws sso login --profile job"):
        len(ffrecord.open("s3://bucket/train/"))
    assert identities.asked == []
    _sign_on(tmp_path, config, 60)
    assert len(ffrecord.open("s3://bucket/train/")) == COUNT
    ((method, path, headers, query),) = identities.asked
    assert (method, path, query) == (
        "GET",
        "/federation/credentials",
        "account_id=123&role_name=Reader",
    )
    assert headers["HTTP_X_AMZ_SSO_BEARER_TOKEN"] == "bearer"
    identities.holds_s = 2
    reader = ffrecord.open("s3://bucket/train/")
    eventually(lambda: len(reader.read([0])) and len(identities.asked) > 2)
    identities.status = 401
    with pytest.raises(PermissionError, match=r"401.*aws sso login --profile job"):
        len(ffrecord.open("s3://bucket/train/"))


def test_a_role_is_taken_with_single_sign_on(
    identities: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = _SESSION.replace("profile job", "profile me")
    _TOKENS[config] = "corp"
    _profile(
        tmp_path, monkeypatch, config + "[profile job]\nrole_arn = arn:r\nsource_profile = me\n"
    )
    _sign_on(tmp_path, config, 60)
    monkeypatch.setenv("AWS_ENDPOINT_URL_SSO", identities.address)
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", identities.address)
    assert len(ffrecord.open("s3://bucket/train/")) == COUNT
    (_, path, _, _), (method, _, headers, _) = identities.asked
    assert (path, method) == ("/federation/credentials", "POST")
    assert "Credential=KEY1/" in headers["HTTP_AUTHORIZATION"]
