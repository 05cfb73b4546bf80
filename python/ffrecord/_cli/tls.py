"""Whether the certificates in a folder work for a TLS connection, and for how long."""

import datetime
import ssl
from pathlib import Path
from typing import Any

# Renewing takes a while where people have a part in it.
_SOON_DAYS = 30
_OTHERS_MAY = 0o077


def examine_tls(folder: str) -> tuple[dict[str, Any], list[str]]:
    """The facts about a folder for `?tls=FOLDER`, and advice about them.

    Does not ask a daemon: only it knows whether it trusts the authority of this certificate.
    """
    path = Path(folder)
    facts: dict[str, Any] = {"tls_folder": folder}
    advice: list[str] = []
    ends: dict[str, float] = {}
    trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        trusted.load_verify_locations(path / "ca.pem")
        dates = [str(one["notAfter"]) for one in trusted.get_ca_certs()]
        if dates:
            ends["authority"] = min(map(ssl.cert_time_to_seconds, dates))
    except OSError as error:  # SSLError is one.
        advice.append(
            f"{path / 'ca.pem'}: {_reason(error)}; it must hold the trusted authorities, in PEM"
        )
    if (path / "cert.pem").exists() or (path / "key.pem").exists():
        end, trouble = _own(path, trusted)
        advice += trouble
        if end is not None:
            ends["certificate"] = end
    now = datetime.datetime.now(datetime.UTC)
    for what, seconds in ends.items():
        moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
        facts[f"{what}_expires"] = moment.isoformat(timespec="seconds")
        if moment <= now:
            advice.append(f"the {what} in {folder} has expired: issue a new one")
        elif moment - now < datetime.timedelta(days=_SOON_DAYS):
            advice.append(f"the {what} in {folder} expires in {(moment - now).days} days: renew it")
    return facts, advice


def _own(path: Path, trusted: ssl.SSLContext) -> tuple[float | None, list[str]]:
    """When the own certificate expires, if it leads to an authority of the folder, and problems."""
    certificate, key = path / "cert.pem", path / "key.pem"
    advice = []
    try:
        if key.stat().st_mode & _OTHERS_MAY:
            advice.append(f"{key} is accessible to other users: run chmod 600 on it")
        own = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        own.check_hostname = False
        own.verify_mode = ssl.CERT_NONE
        for side in (own, trusted):
            side.load_cert_chain(certificate, key, password=lambda: "")
    except OSError as error:
        return None, [*advice, f"{certificate} and {key}: {_reason(error)}"]
    if not trusted.get_ca_certs():
        return None, advice
    trusted.verify_mode = ssl.CERT_REQUIRED
    try:
        return _shaken(trusted, own), advice
    except ssl.SSLError as error:
        why = getattr(error, "verify_message", None) or _reason(error)
        return None, [*advice, f"{certificate} is not signed by an authority in ca.pem: {why}"]


def _shaken(server: ssl.SSLContext, client: ssl.SSLContext) -> float:
    """Run a handshake with itself in memory: the server checks the client's certificate."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    theirs = server.wrap_bio(there, back, server_side=True)
    ours = client.wrap_bio(back, there)
    pending = [ours, theirs]
    for side in [ours, theirs] * 4:
        if side not in pending:
            continue
        try:
            side.do_handshake()
            pending.remove(side)
        except ssl.SSLWantReadError:
            continue
    found = theirs.getpeercert()
    if pending or not found:
        raise ssl.SSLError("the handshake does not end")
    return ssl.cert_time_to_seconds(str(found["notAfter"]))


def _reason(error: OSError) -> str:
    return str(getattr(error, "reason", None) or error.strerror or error)
