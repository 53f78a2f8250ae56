"""``make screenshots``: every page in light and dark, from real runs, into ``docs/images``."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.browser import sample
from tests.browser.conftest import BROWSERS, ROOT, Site, chromium_path

TARGET = ROOT / "docs" / "images"
SIZE = {"width": 1180, "height": 740}
WORST = sample.WORST_ENV
PAGES = {
    "home": "/",
    "charts": f"/p/{sample.PROJECT}/charts",
    "runs": f"/p/{sample.PROJECT}/runs",
    "run": f"/p/{sample.PROJECT}/run/{{run}}",
    "compare": f"/p/{sample.PROJECT}/compare",
    "environments": f"/p/{sample.PROJECT}/envs/{{run}}?sel={WORST},env-003,env-011",
    "episodes": f"/p/{sample.PROJECT}/episodes/{{run}}?ep={WORST}:{sample.RL_STEPS - 1}",
    "system": f"/p/{sample.PROJECT}/system",
}


def main() -> int:
    """Take the pictures; returns the exit status."""
    from playwright.sync_api import sync_playwright

    path = chromium_path()
    if path is None:
        print(f"none of {', '.join(BROWSERS)} is installed", file=sys.stderr)
        return 1
    TARGET.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        data_dir = f"{folder}/data"
        live = sample.log_sample(data_dir)
        site = Site(data_dir, live)
        try:
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(
                    executable_path=path, args=["--no-sandbox"], timeout=60_000
                )
                for theme in ("light", "dark"):
                    take(browser, site, theme)
                browser.close()
        finally:
            live.close()
            stop = [sys.executable, "-m", "metrana_async.server", "stop", "--data-dir", data_dir]
            subprocess.run(stop, check=True, cwd=ROOT)
    return 0


def take(browser, site: Site, theme: str) -> None:
    """Every page in one theme."""
    context = browser.new_context(viewport=SIZE, color_scheme=theme, reduced_motion="reduce")
    page = context.new_page()
    page.goto(site.link(f"/p/{sample.PROJECT}/runs"))
    run = page.locator("td a", has_text=sample.RUNS[-1][0]).get_attribute("href").rpartition("/")[2]
    for name, path in PAGES.items():
        page.goto(site.url + path.format(run=run))
        page.wait_for_load_state("networkidle")
        page.wait_for_timeout(1200)  # the last frame
        if name == "charts":
            point(page)
        file = TARGET / f"{name}-{theme}.png"
        page.screenshot(path=file)
        print(f"{file.relative_to(ROOT)}: {Path(file).stat().st_size >> 10} KiB")
    context.close()


def point(page) -> None:
    """Put the pointer on the first chart, so that the picture has a tooltip."""
    box = page.locator(".u-over").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + box["height"] * 0.35)
    page.wait_for_timeout(300)


if __name__ == "__main__":
    sys.exit(main())
