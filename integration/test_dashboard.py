"""The dashboard in a real browser: a running job, and jobs of many ranks and splits.

Debian's Chromium is used. Where it is missing the tests are skipped, saying so; as root with CI or
FOREBAY_INSTALL_BROWSER=1 it is installed. Pictures of the pages lie in .cache/artefacts, or where
FOREBAY_ARTEFACTS says.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from integration.browser import BrowserUnavailable, chromium, messages, prefer, resize, screenshot
from selenium.webdriver import ActionChains, Chrome, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait
from tests.histories import decision, durations, history, letters, snapshot, told
from tests.http_support import board

from forebay import Pipeline
from forebay.autoscale import Autoscaling
from forebay.deadletter import ErrorBudget
from forebay.histogram import FRESHNESS_BOUNDS
from forebay.nvml import GpuSeen
from forebay.observe import serving
from forebay.observe.board import OwnRanks, TargetSeen
from forebay.observe.following import follow
from forebay.observe.monitor import Monitor
from forebay.observe.serving import Server
from forebay.observe.snapshot import Snapshot
from forebay.testing import MemorySource

# To install a browser, where there is none, takes a minute or more.
pytestmark = pytest.mark.timeout(600)

HOSTILE = "<img src=x onerror='window.owned=1'><script>window.owned=1</script>"
TOKEN = "a-token-that-nobody-guesses"
SECONDS = 20.0


@pytest.fixture(scope="module")
def browser() -> Iterator[Chrome]:
    """One browser for all tests; skips, saying why, where there is none."""
    try:
        with chromium() as driver:
            yield driver
    except BrowserUnavailable as missing:
        pytest.skip(f"the dashboard is not tested here: {missing}")


@pytest.fixture(autouse=True)
def quiet(browser: Chrome) -> Iterator[None]:
    """A clean view before each test, and nothing to complain of behind it."""
    resize(browser, 1280, 900)
    prefer(browser, "light")
    messages(browser)
    yield
    assert messages(browser) == []


def tripled(row: dict[str, Any]) -> dict[str, Any]:
    if row["value"] % 97 == 0:
        raise ValueError(HOSTILE)
    return {"value": row["value"] * 3}


def slowed(row: dict[str, Any]) -> dict[str, Any]:
    time.sleep(0.0005)
    return row


@pytest.fixture(scope="module")
def job() -> Iterator[str]:
    """The address of the dashboard of a job that runs as long as the tests do."""
    source = MemorySource({f"clicks/{i}": range(100_000) for i in range(4)}, slice_rows=20)
    stages = Pipeline(source).map(tripled, per="row").map(slowed, per="row")
    loader = (
        stages.dead_letters(None, ErrorBudget(share=1.0, all_of=10**9))
        .batch(16)
        .loader(workers=(1, 3), autoscale=Autoscaling(interval=0.2), passes=None)
    )
    stopped = threading.Event()

    def train() -> None:
        while not stopped.is_set():
            for _ in loader:
                if stopped.wait(0.002):
                    return

    trainer = threading.Thread(target=train)
    with Monitor(loader, interval=0.25, gpus=False) as monitor:
        with Server(OwnRanks(monitor.history), port=0) as server:
            trainer.start()
            try:
                yield server.url
            finally:
                stopped.set()
                trainer.join()
                loader.close()


def many() -> list[list[Snapshot]]:
    """Four ranks, one of which starves, and 1,000 splits."""
    began = time.time() - 600
    ranks: list[list[Snapshot]] = []
    for r in range(4):
        starved = 0.45 if r == 2 else 0.1
        past = history(599, rank=r, world=4, began=began, starved=starved)
        now = snapshot(600, rank=r, world=4, began=began, starved=starved, splits=250)
        splits = {f"kafka:clicks/{250 * r + i}": s for i, s in enumerate(now.splits.values())}
        up = replace(decision(0, 2, 4, "the trainer starves 38 % and 12,000 wait"), at=began + 300)
        now = replace(
            now,
            splits=splits,
            ranks=tuple(told(n, 0.45 if n == 2 else 0.1) for n in range(4)),
            decisions=(up,),
            letters=letters("ValueError: no number", "UnicodeDecodeError: byte 0xff"),
            gpus=(GpuSeen(uuid=f"GPU-{r}", busy=0.98, sm_active=0.4, watts=412.0),),
        )
        ranks.append([*past, now])
    return ranks


@pytest.fixture(scope="module")
def big() -> Iterator[str]:
    """The address of a dashboard of that."""
    with Server(board(*many()), port=0) as server:
        yield server.url


def css(browser: Chrome, selector: str) -> WebElement:
    return browser.find_element(By.CSS_SELECTOR, selector)


def all_of(browser: Chrome, selector: str) -> list[str]:
    """The texts of all such elements."""
    found = browser.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)", selector
    )
    return [str(text) for text in found]


def text(browser: Chrome, selector: str) -> str:
    return "|".join(all_of(browser, selector))


def until(browser: Chrome, told_so: Callable[[], object]) -> None:
    WebDriverWait(browser, SECONDS, poll_frequency=0.1).until(lambda _: told_so())


def opened(browser: Chrome, url: str) -> None:
    """Open it, and wait until something is shown."""
    browser.get(url)
    until(browser, lambda: text(browser, "#status") not in ("", "connecting"))
    until(browser, lambda: all_of(browser, "#flow .node"))


def press(browser: Chrome, *keys: str) -> None:
    for key in keys:
        ActionChains(browser).send_keys(key).perform()


def focused(browser: Chrome) -> WebElement:
    return browser.switch_to.active_element


def leave(browser: Chrome) -> None:
    """Close the page before its server: it would ask on, and the browser tell of each refusal."""
    browser.get("about:blank")


def test_a_verdict_is_given_with_its_shares(browser: Chrome, job: str) -> None:
    opened(browser, job)
    until(browser, lambda: "%" in text(browser, "#verdict-legend"))
    assert text(browser, "#verdict-sentence") not in ("", "Nothing was seen yet.")
    assert text(browser, "#verdict-cause") != ""
    assert "computes" in (css(browser, "#verdict-bar").get_attribute("aria-label") or "")


def test_the_verdict_says_of_which_time_it_is(browser: Chrome, big: str) -> None:
    opened(browser, big)
    assert text(browser, "#verdict-of") == "of the last 30 s"


def test_the_topology_is_drawn_as_a_flow_with_live_figures(browser: Chrome, job: str) -> None:
    opened(browser, job)
    kinds = [e.get_attribute("data-kind") for e in browser.find_elements(By.CSS_SELECTOR, ".node")]
    assert kinds == ["source", "stage", "stage", "batch", "trainer"]
    assert all_of(browser, ".node[data-kind=stage] h3") == ["tripled", "slowed"]
    assert "worker" in text(browser, ".pool")
    until(browser, lambda: "–" not in text(browser, ".flowing"))  # noqa: RUF001
    before = text(browser, "#foot"), text(browser, "#flow")
    until(browser, lambda: text(browser, "#foot") != before[0])
    until(browser, lambda: text(browser, "#flow") != before[1])
    screenshot(browser, "job")


def test_splits_and_decisions_of_the_job_are_listed(browser: Chrome, job: str) -> None:
    opened(browser, job)
    assert sorted(all_of(browser, "#splits-body th")) == [f"clicks/{i}" for i in range(4)]
    until(browser, lambda: "stages: " in text(browser, "#decisions b"))
    until(browser, lambda: all_of(browser, "#decisions .reason"))


def test_a_dead_letters_reason_is_text_whatever_it_holds(browser: Chrome, job: str) -> None:
    opened(browser, job)
    until(browser, lambda: HOSTILE in text(browser, "#letters .reason"))
    assert "tripled/ValueError" in text(browser, "#letters-kinds")
    assert browser.find_elements(By.CSS_SELECTOR, "#letters img, #letters script") == []
    assert browser.execute_script("return window.owned") is None


def test_1000_splits_are_filtered_sorted_and_cut_by_keyboard(browser: Chrome, big: str) -> None:
    opened(browser, big)
    assert text(browser, "#split-count") == "20 of 1,000 splits"
    css(browser, "#split-filter").send_keys("clicks/77")
    until(browser, lambda: len(all_of(browser, "#splits-body tr")) == 11)
    press(browser, Keys.TAB, Keys.SPACE)
    until(browser, lambda: set(all_of(browser, "#splits-body [data-column=state]")) == {"STALLED"})
    press(browser, Keys.SPACE)
    css(browser, "#splits-head [data-column=name] button").send_keys(Keys.ENTER)
    until(browser, lambda: all_of(browser, "#splits-body th")[0] == "kafka:clicks/77")
    press(browser, Keys.ENTER)
    until(browser, lambda: all_of(browser, "#splits-body th")[0] == "kafka:clicks/779")
    assert css(browser, "[data-column=name]").get_attribute("aria-sort") == "descending"
    css(browser, "#split-filter").clear()
    css(browser, "#split-filter").send_keys("x", Keys.BACKSPACE)
    css(browser, "#split-most").send_keys("all")
    until(browser, lambda: len(all_of(browser, "#splits-body tr")) == 1000)


def test_the_rank_that_starves_is_shown_first_and_marked_in_words(
    browser: Chrome, big: str
) -> None:
    opened(browser, big)
    assert "rank 2 of 4" in text(browser, "#job-facts")
    assert text(browser, "#ranks tr[data-starved] th") == "rank 2 starves"
    css(browser, "#rank").send_keys("rank 1")
    until(browser, lambda: "rank 1 of 4" in text(browser, "#job-facts"))


def test_charts_tell_the_figures_of_a_moment_by_keyboard(browser: Chrome, big: str) -> None:
    opened(browser, big)
    plot = css(browser, ".plot")
    assert "waits for data 45 %" in (plot.get_attribute("aria-label") or "")
    plot.send_keys(Keys.HOME)
    until(browser, lambda: ":" in all_of(browser, ".when")[0])
    plot.send_keys(Keys.END, *[Keys.PAGE_UP] * 10)
    until(browser, lambda: "2 to 4 workers: the trainer starves" in all_of(browser, ".note")[0])
    assert len(browser.find_elements(By.CSS_SELECTOR, ".plot .mark")) == 6


def test_durations_have_ticks_that_are_round_to_people(browser: Chrome) -> None:
    old = [
        replace(s, freshness=durations(FRESHNESS_BOUNDS, 1000.0, 1000 * i))
        for i, s in enumerate(history(60, began=time.time() - 60))
    ]
    with Server(board(old), port=0) as server:
        opened(browser, server.url)
        chart = ".chart:nth-child(3)"
        assert "Freshness" in text(browser, f"{chart} h3")
        assert " min " in text(browser, f"{chart} .legend b")
        ticks = all_of(browser, f"{chart} .of-value")
        assert ticks[0] == "0"
        assert [round_to_people(tick) for tick in ticks[1:]] == [True] * len(ticks[1:])
        assert browser.execute_script(CUT_LABELS) == []
        leave(browser)


def round_to_people(tick: str) -> bool:
    """Whether a duration on an axis can be told at a glance."""
    figure, unit = tick.split()
    return unit in ("s", "min", "h") and int(figure) in (1, 2, 3, 4, 5, 10, 15, 20, 30, 45, 60, 90)


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_is_cut_off_and_all_text_can_be_read(
    browser: Chrome, big: str, width: int, theme: str
) -> None:
    prefer(browser, theme)
    resize(browser, width, 900)
    opened(browser, big)
    screenshot(browser, f"ranks-{theme}-{width}")
    assert browser.execute_script("return document.documentElement.scrollWidth") == width
    assert browser.execute_script(FAINT_TEXT) == []
    assert browser.execute_script(CUT_LABELS) == []


def test_the_theme_can_be_chosen_and_is_kept(browser: Chrome, big: str) -> None:
    ground = "return getComputedStyle(document.body).backgroundColor"
    opened(browser, big)
    light = browser.execute_script(ground)
    css(browser, "#theme").send_keys(Keys.ENTER, Keys.ENTER)
    assert text(browser, "#theme") == "Theme: dark"
    opened(browser, big)
    assert browser.execute_script(ground) != light
    css(browser, "#theme").send_keys(Keys.ENTER)
    assert (text(browser, "#theme"), browser.execute_script(ground)) == ("Theme: auto", light)


def test_everything_that_is_used_has_a_name_and_the_page_an_outline(
    browser: Chrome, big: str
) -> None:
    opened(browser, big)
    used = browser.find_elements(By.CSS_SELECTOR, "button, select, input, svg, [role=region]")
    assert [
        e.get_attribute("outerHTML") for e in used if e.is_displayed() and not e.accessible_name
    ] == []
    assert browser.execute_script("return document.documentElement.lang") == "en"
    assert len(browser.find_elements(By.CSS_SELECTOR, "main")) == 1
    assert len(browser.find_elements(By.CSS_SELECTOR, "h1")) == 1
    assert browser.execute_script(REPEATED_IDS) == []
    assert browser.find_elements(By.CSS_SELECTOR, "th:not([scope])") == []
    assert browser.execute_script(SKIPPED_HEADINGS) == []


def test_the_keyboard_comes_everywhere_and_shows_where_it_is(browser: Chrome, big: str) -> None:
    opened(browser, big)
    press(browser, Keys.TAB)
    assert "skip" in (focused(browser).get_attribute("class") or "")
    assert focused(browser).is_displayed()
    press(browser, Keys.ENTER)
    assert focused(browser).get_attribute("id") == "main"
    seen: list[str] = []
    while "body" not in seen:
        press(browser, Keys.TAB)
        seen.append(focused(browser).tag_name)
        assert seen[-1] == "body" or browser.execute_script(OUTLINE) >= 2
    assert {"svg", "input", "button", "select"} <= set(seen)


def test_nothing_moves_for_who_wants_no_motion(browser: Chrome, big: str) -> None:
    moving = "return getComputedStyle(document.querySelector('.arrow'), '::before').animationName"
    opened(browser, big)
    assert browser.execute_script(moving) == "flowing"
    prefer(browser, "light", reduced_motion=True)
    assert browser.execute_script(moving) == "none"


def test_what_is_not_known_is_a_dash(browser: Chrome) -> None:
    with Server(board([snapshot(1, began=time.time() - 1, splits=0)]), port=0) as server:
        opened(browser, server.url)
        assert all_of(browser, "#tiles .big") == ["–"] * 5 + ["0"]  # noqa: RUF001
        leave(browser)


class Waiting:
    """A board that tells nothing until it may."""

    def __init__(self) -> None:
        self.may_tell = threading.Event()

    def histories(self) -> Sequence[Sequence[Snapshot]]:
        self.may_tell.wait(SECONDS)
        return []

    def targets(self) -> Sequence[TargetSeen]:
        return []


def test_before_anything_came_what_is_there_to_press_has_its_words(browser: Chrome) -> None:
    waiting = Waiting()
    with Server(waiting, port=0) as server:
        browser.get(server.url)
        until(browser, lambda: all_of(browser, ".chip"))
        assert text(browser, "#status") == "connecting"
        assert all_of(browser, ".chip") == ["STALLED", "STOPPED", "BEHIND", "OK"]
        waiting.may_tell.set()
        leave(browser)


def test_of_a_target_that_never_told_anything_that_is_said(browser: Chrome) -> None:
    never = follow(["no-such-file.jsonl"])
    never.refresh()
    with Server(never, port=0) as server:
        browser.get(server.url)
        until(browser, lambda: text(browser, "#status") == "silent")
        assert text(browser, "#banner-words") == "no-such-file.jsonl: there is no such file."
        assert text(browser, "#banner-age") == "Nothing was heard yet."
        leave(browser)


def test_where_nothing_was_decided_it_is_said_whether_anything_can_be(browser: Chrome) -> None:
    seen = history(60, began=time.time() - 60)
    pool = seen[-1].pools["stages"]
    fixed = replace(snapshot(60, rank=1), pools={"stages": replace(pool, least=2, most=2)})
    with Server(board(seen, [fixed]), port=0) as server:
        opened(browser, server.url)
        assert text(browser, "#decisions") == "No change of the number of workers was decided."
        css(browser, "#rank").send_keys("rank 1")
        until(browser, lambda: text(browser, "#decisions") == "The number of workers is fixed.")
        leave(browser)


def test_a_lost_connection_is_said_and_comes_back_by_itself(
    browser: Chrome, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = time.time() - 60
    with Server(board(history(60, began=began)), port=0) as server:
        opened(browser, server.url)
        assert text(browser, "#status") == "live"
        monkeypatch.setattr(serving, "SECONDS_BETWEEN_EVENTS", 600)
        until(browser, lambda: text(browser, "#status") == "connection lost")
        assert "What you see is" in text(browser, "#banner-age")
        screenshot(browser, "lost")
    monkeypatch.undo()
    again = [
        *history(60, began=began),
        replace(snapshot(61, began=began, rows=77_000), at=time.time()),
    ]
    with Server(board(again), port=server.port):
        until(browser, lambda: "77,000 in all" in text(browser, "#tiles"))
        assert text(browser, "#status") == "live"
        assert not css(browser, "#banner").is_displayed()
        leave(browser)
    messages(browser)  # of the time in which nobody answered


def test_a_job_that_is_gone_is_shown_as_it_was_last(browser: Chrome) -> None:
    with Server(board(history(60, began=time.time() - 60)), port=0) as gone:
        followed = follow([gone.url])
        followed.refresh()
    followed.refresh()
    with Server(followed, port=0) as server:
        opened(browser, server.url)
        assert text(browser, "#status") == "silent"
        assert "not reached: " in text(browser, "#banner-words")
        assert text(browser, "#banner-age").startswith("Last heard ")
        assert "60,000 in all" in text(browser, "#tiles")
        leave(browser)


def test_the_end_of_the_run_is_said(browser: Chrome) -> None:
    seen = history(60, began=time.time() - 60)
    with Server(board(seen), port=0) as server:
        opened(browser, server.url)
        seen.append(replace(seen[-1], at=seen[-1].at + 1, ended="failed"))
    until(browser, lambda: text(browser, "#status") == "ended: failed")
    assert "The run ended (failed)" in text(browser, "#banner")
    leave(browser)
    messages(browser)  # the page went on asking


def test_a_token_opens_the_page_once_and_leaves_the_address(browser: Chrome) -> None:
    seen = history(60, began=time.time() - 60)
    with Server(board(seen), port=0, token=TOKEN) as server:
        browser.get(server.url)
        assert "a token is needed" in text(browser, "body")
        messages(browser)  # of that refusal
        opened(browser, f"{server.url}?token={TOKEN}")
        assert browser.current_url == server.url
        assert TOKEN not in str(browser.execute_script("return document.cookie"))
        leave(browser)


REPEATED_IDS = """
const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
return ids.filter((id, i) => ids.indexOf(id) !== i);
"""
SKIPPED_HEADINGS = """
const levels = [...document.querySelectorAll("h1, h2, h3, h4")].map((h) => Number(h.tagName[1]));
return levels.filter((level, i) => level > (levels[i - 1] ?? 0) + 1);
"""
OUTLINE = """
const style = getComputedStyle(document.activeElement);
return style.outlineStyle === "none" ? 0 : parseFloat(style.outlineWidth);
"""
# Labels of charts that are not wholly within their chart.
CUT_LABELS = """
return [...document.querySelectorAll(".plot text")]
  .filter((label) => {
    const [its, all] = [label, label.closest("svg")].map((e) => e.getBoundingClientRect());
    const across = its.left < all.left || its.right > all.right;
    return across || its.top < all.top || its.bottom > all.bottom;
  })
  .map((label) => label.textContent);
"""
# Elements whose own text has less contrast to what is behind it than WCAG's 4.5.
FAINT_TEXT = """
const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
const light = ([r, g, b]) => [r, g, b]
  .map((c) => c / 255)
  .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
  .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
const behind = (e) => {
  for (; e; e = e.parentElement) {
    const ground = parts(getComputedStyle(e).backgroundColor);
    if (ground.length === 3 || ground[3] === 1) return ground;
  }
  return [255, 255, 255];
};
return [...document.querySelectorAll("body *")]
  .filter((e) => e.checkVisibility({ checkOpacity: true }) && !e.closest("noscript"))
  .filter((e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()))
  .map((e) => {
    const style = getComputedStyle(e);
    const text = light(parts(e.closest("svg") ? style.fill : style.color));
    const ground = light(behind(e));
    const ratio = (Math.max(text, ground) + 0.05) / (Math.min(text, ground) + 0.05);
    return [e.textContent.slice(0, 30), e.className.toString(), Math.round(ratio * 100) / 100];
  })
  .filter(([, , ratio]) => ratio < 4.5);
"""
