#!/usr/bin/env python3
"""Turns the dashboard's page into the source of a string. Arguments: the page, the source."""

import pathlib
import sys

SIZE_BYTES_MAX = 65_536  # Every compiler takes so much as one literal.

page = pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")
if len(page.encode()) > SIZE_BYTES_MAX or ')page"' in page:
    sys.exit(f"{sys.argv[1]} does not fit one string literal")
pathlib.Path(sys.argv[2]).write_text(
    '#include "server/service/admin/dashboard_page.h"\n\nnamespace ffrecord::server {\n\n'
    f'const std::string_view kDashboardPage = R"page({page})page";\n\n'
    "}  // namespace ffrecord::server\n",
    encoding="utf-8",
)
