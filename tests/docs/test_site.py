"""The documentation as a site, as `make docs` builds it."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_site_has_every_page_and_no_dead_link(tmp_path):
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "docs", tmp_path]
    build = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert build.stderr == ""
    pages = {page.stem for page in (ROOT / "docs").glob("*.md")}
    start = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert pages <= set(re.findall(r'href="([\w-]+)\.html"', start)) | {"index"}
    reference = (tmp_path / "api.html").read_text(encoding="utf-8")
    assert 'id="penstock.create_auto_cdc_flow"' in reference
    assert 'id="penstock.testing.PipelineTest"' in reference
