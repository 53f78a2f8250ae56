"""Every page against a real server with real data: it shows what is stored, without complaint."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.browser import sample

expect = pytest.importorskip(
    "playwright.sync_api", reason="the tests in a browser need playwright"
).expect
PROJECT = f"/p/{sample.PROJECT}"


def drawn(page, name):
    """The card of a metric, once it is in sight and has drawn."""
    card = page.get_by_role("article", name=name, exact=True)
    card.scroll_into_view_if_needed()
    card.locator("canvas").first.wait_for()
    return card


def test_the_charts_of_a_project_are_there_without_a_word(watched):
    """Each metric has a card with its runs, in sections by prefix; titles are not cut."""
    page = watched.page
    for name in ("rollout/ep_return_mean", "rollout/success_rate", "train/loss"):
        card = drawn(page, name)
        assert "5 runs" in card.locator(".badge").inner_text()
    assert page.get_by_role("button", name="rollout 3").count() == 1
    cut = page.evaluate(
        "[...document.querySelectorAll('.card-head h3')]"
        ".filter((title) => title.scrollWidth > title.clientWidth).length"
    )
    assert cut == 0
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_style_of_the_chart_library_is_served(watched):
    """The canvas lies where the library's own style sheet puts it; without that it is elsewhere."""
    drawn(watched.page, "train/loss")
    assert watched.page.evaluate(
        "getComputedStyle(document.querySelector('.u-over')).position"
    ) == ("absolute")


def test_a_card_is_made_when_it_comes_into_sight(watched):
    """What is far below is neither drawn nor asked for until it is scrolled to."""
    page = watched.page
    drawn(page, "train/loss")
    far = page.get_by_role("article", name="perf/env_steps_per_sec", exact=True)
    page.set_viewport_size({"width": 1280, "height": 320})
    page.reload()
    drawn(page, "rollout/ep_len_mean")
    assert far.locator("canvas").count() == 0
    far.scroll_into_view_if_needed()
    far.locator("canvas").first.wait_for()


def test_zoom_is_linked_and_in_the_address(watched):
    """Dragging over one chart zooms all; Back undoes it, and the address opens the same window."""
    page = watched.page
    over = drawn(page, "train/loss").locator(".u-over")
    box = over.bounding_box()
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.3, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, y, steps=5)
    page.mouse.up()
    page.wait_for_url(re.compile(r"xr="))
    assert page.get_by_role("button", name="Reset zoom").is_visible()
    address = page.url
    page.go_back()
    expect(page).not_to_have_url(re.compile("xr="))
    page.goto(address)
    page.get_by_role("button", name="Reset zoom").wait_for()
    drawn(page, "train/loss")


def test_the_pointer_tells_values(watched):
    """Over a chart there is one tooltip with each run's value, range and count."""
    page = watched.page
    chart = drawn(page, "train/loss").locator(".u-over")
    told: list[str] = []
    for turn in range(50):
        # The live run may have its chart drawn anew, and then a pointer that rests tells nothing.
        chart.hover(position={"x": 40 + turn, "y": 40})
        told = page.evaluate(
            "[...document.querySelectorAll('[role=status]')].map((t) => t.innerText)"
        )
        if told:
            break
        page.wait_for_timeout(100)
    assert len(told) == 1
    assert "ppo-ant" in told[0]


def test_a_spike_is_drawn_where_thousands_of_points_share_few_buckets(watched):
    """The greatest value that was logged is in the card's saved data, to the last bit."""
    page = watched.page
    card = drawn(page, "train/grad_norm")
    card.hover()
    with page.expect_download() as saved:
        card.get_by_role("button", name="save as CSV").click()
    rows = saved.value.path().read_text().splitlines()
    at = rows[0].split(",").index("max")
    greatest = max(float(row.rsplit(",", len(rows[0].split(",")) - 1)[at]) for row in rows[1:])
    assert greatest == max(largest_spikes())


def largest_spikes() -> list[float]:
    """The greatest gradient norm of each run, as the sample drew it."""
    found: list[float] = []

    class Spy:
        def log(self, name, value, step):
            if name == "train/grad_norm":
                found.append(float(np.float32(value.max())))

    for _, rate, seed, share in sample.RUNS:
        sample.log_curves(Spy(), rate, seed, share)
    return found


def test_runs_are_switched_off_and_filtered(watched):
    """A hidden run leaves the charts, a filter the list; both are in the address."""
    page = watched.page
    drawn(page, "train/loss")
    page.get_by_role("button", name="hide ppo-ant-lr1e-4-s0").click()
    page.locator(".badge", has_text="4 runs").first.wait_for()
    assert "r=-" in page.url
    page.get_by_label("filter of runs").fill("config.seed < 2")
    expect(page.locator(".run-row")).to_have_count(2)
    page.wait_for_url(re.compile("q=config"))


def test_a_filter_that_means_nothing_says_where(watched):
    """The server's words about a mistake stand under the filter."""
    page = watched.page
    drawn(page, "train/loss")
    page.get_by_label("filter of runs").fill("config.seed <")
    page.get_by_role("alert").first.wait_for()
    assert "filter" in page.get_by_role("alert").first.inner_text()
    assert len(watched.faults) == 1  # a refused request: the browser itself puts it on its console
    assert "400" in watched.faults.pop()


def test_a_live_run_grows_on_the_page(watched, site):
    """Points that are acknowledged while the page is open appear on it by themselves."""
    page = watched.page
    drawn(page, "train/loss")
    before = page.locator(".run-row", has_text="s4").locator(".run-progress").inner_text()
    step = 10**9
    site.live.log("train/loss", 0.25, step=step)
    site.live.flush()
    progress = page.locator(".run-row", has_text="s4").locator(".run-progress")
    expect(progress).to_have_text("1G")
    assert before != "1G"


@pytest.mark.parametrize(
    ("path", "heading", "text"),
    [
        ("runs", "name", "ppo-ant-lr1e-3-s2"),
        ("compare", "Config", "optimizer.lr"),
        ("envs", "episode_return across 24 environments", sample.WORST_ENV),
        ("episodes", "episode_return of each episode", "env-000"),
        ("system", "Writers", "committed"),
    ],
)
def test_a_page_opens_by_its_address(watched, path, heading, text):
    """The page shows what it is for, fits 1280 pixels and survives a reload."""
    page = watched.page
    page.goto(f"{page.url.split('/p/')[0]}{PROJECT}/{path}")
    page.get_by_text(heading, exact=False).first.wait_for()
    page.get_by_text(text, exact=False).first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.reload()
    page.get_by_text(text, exact=False).first.wait_for()


def test_the_worst_environment_comes_first(watched):
    """The table begins with the environment that does worst, and leads to its episodes."""
    page = watched.page
    page.goto(f"{page.url.split('/p/')[0]}{PROJECT}/envs")
    first = page.locator(".rows .row").first
    first.wait_for()
    assert sample.WORST_ENV in first.inner_text()
    assert first.locator(".bad").count() >= 1
    first.click()
    page.get_by_role("article", name=re.compile("selected environments")).locator(
        "canvas"
    ).first.wait_for()
    assert f"sel={sample.WORST_ENV}" in page.url
    first.get_by_role("link").click()
    page.get_by_role("article", name="episode_return of each episode").wait_for()
    page.locator(".rows .row").first.click()
    page.get_by_role("article", name="reward").locator("canvas").first.wait_for()
    assert "16 steps · exact" in page.get_by_role("article", name="reward").inner_text()


def test_numbers_across_environments_are_the_servers(watched, site):
    """What the table shows is what the query client answers, not what happens to be drawn."""
    import metrana_sync_shim as metrana

    with metrana.QueryClient(project=sample.PROJECT, data_dir=site.data_dir) as client:
        value = client.aggregate(
            site.live.name,
            "episode_return",
            "mean",
            env_id=sample.WORST_ENV,
            episode=sample.RL_STEPS - 1,
        )
    page = watched.page
    page.goto(f"{page.url.split('/p/')[0]}{PROJECT}/envs")
    first = page.locator(".rows .row").first
    first.wait_for()
    shown = first.locator(".bad").first.inner_text()
    assert shown == (f"{value / 1000:.3g}k" if value >= 1000 else f"{value:.4g}")


def test_choices_of_a_page_may_be_changed_back_and_forth(watched):
    """Metric, reduction, grouping and slice of the environments; grouping of the charts."""
    page = watched.page
    page.goto(f"{page.url.split('/p/')[0]}{PROJECT}/envs")
    page.locator(".rows .row").first.wait_for()
    for label, values in (
        ("metric", ("reward", "episode_length", "episode_return")),
        ("reduce", ("iqr", "range", "std")),
        ("group by", ("terrain", "seed", "")),
        ("slice", ("rl_step", "episode", "latest")),
    ):
        for value in values:
            page.get_by_label(label, exact=True).select_option(value)
            page.locator(".rows .row").first.wait_for()
    page.get_by_role("link", name="Charts").click()
    badge = drawn(page, "train/loss").locator(".badge")
    for value, text in (("config.optimizer.lr", "3 groups"), ("state", "groups"), ("", "5 runs")):
        page.get_by_label("group by").select_option(value)
        expect(badge).to_contain_text(text)


def test_a_page_is_silent_while_nothing_happens(watched):
    """Without news there is no request at all: notices come over the socket that is open."""
    page = watched.page
    drawn(page, "rollout/ep_len_mean")
    page.get_by_role("button", name=re.compile("^live")).wait_for()
    page.wait_for_load_state("networkidle")
    requests = []
    page.on("request", lambda request: requests.append(request.url))
    page.wait_for_timeout(3000)
    assert requests == []


def test_twelve_tabs_are_live(watched, site):
    """A browser lends a server six connections; sockets do not count, so no tab waits."""
    context = watched.page.context
    pages = [context.new_page() for _ in range(11)]
    for page in pages:
        page.goto(f"{site.url}{PROJECT}/system")
    for page in pages:
        expect(page.get_by_role("button", name=re.compile("^live"))).to_be_visible(timeout=30_000)
        page.get_by_text("ppo-ant-lr1e-4-s0").first.wait_for()
        page.close()


def test_what_people_name_is_text(chromium, site):
    """A name that is a script is shown as it is, on every page that shows names."""
    import metrana_sync_shim as metrana

    evil = '<img src=x onerror="document.title=1">'
    with metrana.init(
        project_name="names <b>",
        run_name=evil,
        data_dir=site.data_dir,
        quiet=True,
        config={evil: evil},
        tags=[evil],
    ) as run:
        run.log("a<script>", 1.0)
    context = chromium.new_context()
    page = context.new_page()
    page.set_default_timeout(20_000)
    page.goto(site.link("/"))
    page.get_by_role("link", name="names <b>").click()
    page.get_by_role("article", name="a<script>").locator("canvas").first.wait_for()
    for tab in ("Runs", "Compare", "System"):
        page.get_by_role("link", name=tab).click()
        page.get_by_text(evil).first.wait_for()
    assert page.title() != "1"
    assert page.locator("img[src=x], main script").count() == 0
    context.close()


def test_colours_follow_the_system_and_the_button(chromium, site):
    """Dark where the system is dark; the button changes it and the browser remembers."""
    context = chromium.new_context(color_scheme="dark")
    page = context.new_page()
    page.goto(site.link("/"))
    page.get_by_text(sample.PROJECT).first.wait_for()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.get_by_role("button", name=re.compile("^colours")).click()
    page.get_by_role("button", name=re.compile("^colours")).click()
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    page.reload()
    page.get_by_text(sample.PROJECT).first.wait_for()
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    context.close()


def test_a_browser_without_a_login_is_told_how(chromium, site):
    """Nothing is shown without a login; a link works once, for one browser."""
    link = site.link(f"{PROJECT}/charts")
    first, second = chromium.new_context(), chromium.new_context()
    page = first.new_page()
    page.goto(link.split("#")[0])
    page.get_by_text("metrana-async ui").wait_for()
    page = first.new_page()
    page.goto(link)
    page.get_by_role("article", name="train/loss").wait_for()
    assert "login" not in page.url
    page.reload()
    page.get_by_role("article", name="train/loss").wait_for()
    stranger = second.new_page()
    stranger.goto(link)
    stranger.get_by_role("alert").wait_for()
    assert "used already" in stranger.get_by_role("alert").inner_text()
    first.close()
    second.close()
