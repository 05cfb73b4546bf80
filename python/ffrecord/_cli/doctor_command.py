"""ffrecord doctor: what this machine offers, and what reaches an address."""

import json

import click

from ffrecord._cli.accelerator import examine_accelerator
from ffrecord._cli.doctor import examine, examine_rdma, show_findings, show_rdma
from ffrecord._cli.options import json_option, timeout_option
from ffrecord._cli.units import Name, Number


@click.command()
@click.argument("address", type=Name(), required=False)
@timeout_option()
@click.option(
    "--tls",
    "tls_folder",
    type=click.Path(),
    help="Folder of certificates to check, as in ?tls=FOLDER.",
)
@click.option(
    "--seconds",
    type=Number(0.1, 600),
    default=3.0,
    show_default=True,
    help="Time to measure a file, a folder, a dataset or an accelerator.",
)
@click.option(
    "--write", is_flag=True, help="Measure a folder by a temporary file of 128 MiB, also writing."
)
@json_option()
def doctor(
    address: str | None,
    timeout_s: float,
    tls_folder: str | None,
    seconds: float,
    write: bool,
    as_json: bool,
) -> None:
    """Show which features of this machine the library uses, and how to enable more.

    With a local file or folder as ADDRESS, also measure random reads of 4 KiB and 128 KiB and reads
    in order, direct and through the page cache, and say what that means. A folder is measured by
    its largest file. With the address of a daemon, also show which transport reaches it, and why;
    with that of a dataset, read some of it. With the address of record files at an object store,
    read some records and show requests and times. With the word `rdma` instead, list the ports of
    RDMA devices, and why some are not used; with the word `accelerator`, measure copies to the
    device that PyTorch finds. Exits with status 0 whatever it finds, and with 4 if ADDRESS cannot
    be reached or read.
    """
    if address in ("rdma", "accelerator") and (write or tls_folder):
        raise click.UsageError(f"--write and --tls have no meaning with {address}")
    if address == "rdma":
        findings, show = examine_rdma(), show_rdma
    elif address == "accelerator":
        findings, show = examine_accelerator(seconds), show_findings
    else:
        if write and (address is None or "://" in address):
            raise click.UsageError("--write needs a local folder as ADDRESS")
        findings = examine(address, timeout_s, tls_folder, seconds=seconds, may_write=write)
        show = show_findings
    click.echo(json.dumps(findings) if as_json else show(findings))
