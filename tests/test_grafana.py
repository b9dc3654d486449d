"""The Grafana dashboard and the alert rules name metrics and labels that there are.

Where Prometheus' own ``promtool`` is found (Debian: ``apt-get install prometheus``) it judges, too.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.snapshots import busy

from forebay.observe.catalog import METRICS
from forebay.observe.metric import COMMON_LABELS, Metric
from forebay.observe.prometheus import exposition
from forebay.observe.settings import Metrics

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "deploy" / "grafana"
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None,
    reason="promtool is missing: apt-get install --no-install-recommends prometheus",
)
SERIES: Mapping[str, Metric] = {
    name: metric
    for metric in METRICS
    for name in (
        [metric.name + end for end in ("_bucket", "_count", "_sum")]
        if metric.kind == "histogram"
        else [metric.name]
    )
}


def queries() -> Iterator[tuple[str, str, str]]:
    """Where each stands, the expression with Grafana's variables filled in, and its legend."""
    for panel in PANELS:
        for target in panel.get("targets", ()):
            yield panel["title"], filled(target["expr"]), target["legendFormat"]
    for note in DASHBOARD["annotations"]["list"]:
        yield note["name"], filled(note["expr"]), note["titleFormat"]
    for rule in RULES:
        yield rule["alert"], rule["expr"], " ".join(rule["annotations"].values())


def filled(expression: str) -> str:
    known = {"$__rate_interval": "5m", "$run": "clicks", "$rank": ".*"}
    for variable, value in known.items():
        expression = expression.replace(variable, value)
    assert "$" not in expression, expression
    return expression


def labels_of(name: str) -> set[str]:
    metric = SERIES[name]
    return {*COMMON_LABELS, *metric.labels, *(["le"] if metric.kind == "histogram" else [])}


@pytest.mark.parametrize(("where", "expression", "legend"), list(queries()))
def test_every_metric_and_label_that_is_named_exists(
    where: str, expression: str, legend: str
) -> None:
    named = re.findall(r"\b(forebay_\w+)(?:\{([^}]*)\})?", expression)
    assert named, f"{where} asks for nothing of ours"
    for name, selector in named:
        assert name in SERIES, f"{where}: {name}"
        assert set(re.findall(r"(\w+)\s*[=!]", selector)) <= labels_of(name), f"{where}: {selector}"
    there = set().union(*(labels_of(name) for name, _ in named))
    kept = [set(re.split(r",\s*", x)) for x in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression)]
    assert set().union(*kept) <= there, where
    shown = set(re.findall(r"{{\s*(?:\$labels\.)?(\w+)\s*}}", legend))
    assert shown <= (set.union(*kept) if kept else there), f"{where}: {legend}"


def test_all_that_is_known_of_a_busy_job_has_the_states_and_parts_that_are_asked_for() -> None:
    text = exposition([[busy(5), busy(10)]])[0].decode()
    for where, expression, _ in queries():
        for label, value in re.findall(r'(state|part)="(\w+)"', expression):
            assert f'{label}="{value}"' in text, where


def test_rules_say_how_long_how_bad_and_what_to_do() -> None:
    wanted = {"Starved", "LagGrowing", "NotFresh", "DeadLetters", "MemoryGrowing", "ReaderStalled"}
    assert {"Forebay" + name for name in wanted} <= {rule["alert"] for rule in RULES}
    for rule in RULES:
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "0s")), rule["alert"]
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"].keys() == {"summary", "runbook"}
        assert rule["annotations"]["runbook"].endswith(".")
    starved = next(rule for rule in RULES if rule["alert"] == "ForebayStarved")
    assert starved["for"] == "5m"


def test_panels_have_a_place_of_their_own_a_title_and_words_on_what_they_show() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["title"]
        assert panel["type"] == "row" or panel["description"].endswith(".")
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)


def test_the_dashboard_asks_for_its_data_source_and_needs_no_plugin() -> None:
    kinds = {panel["type"] for panel in PANELS}
    assert kinds <= {"row", "stat", "timeseries", "table"}
    sources = [p["datasource"]["uid"] for p in PANELS if "datasource" in p]
    assert set(sources) == {"${datasource}"}
    assert "__inputs" not in DASHBOARD


def test_gpu_utilisation_is_labelled_as_what_it_is() -> None:
    (panel,) = [p for p in PANELS if "gpu_busy" in str(p.get("targets"))]
    assert panel["title"] == "GPU: any kernel ran"
    assert "Not how busy the device is" in panel["description"]


def test_the_settings_that_the_readme_shows_are_those_that_there_are() -> None:
    text = (FOLDER / "README.md").read_text()
    shown = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    topology, prometheus, pods = (yaml.safe_load(block) for block in shown)
    assert topology["metrics"].keys() <= {f.name for f in fields(Metrics)}
    port = topology["metrics"]["listen"].rpartition(":")[2]
    (job,) = prometheus["scrape_configs"]
    targets = [target for config in job["static_configs"] for target in config["targets"]]
    assert {target.rpartition(":")[2] for target in targets} == {port}
    assert prometheus["rule_files"] == ["alerts.yaml"]
    assert pods["kind"] == "PodMonitor"


@needs_promtool
def test_promtool_finds_nothing_amiss_with_the_metrics() -> None:
    text = exposition([[busy(5), busy(10)]])[0]
    judged("check", "metrics", given=text)


@needs_promtool
def test_promtool_takes_the_rules_and_the_queries_of_the_dashboard(tmp_path: Path) -> None:
    asked = [{"record": f"panel:{i}", "expr": q} for i, (_, q, _) in enumerate(queries())]
    rules = tmp_path / "queries.yaml"
    rules.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": asked}]}))
    judged("check", "rules", str(rules))
    judged("check", "rules", "--lint-fatal", str(FOLDER / "alerts.yaml"))


@needs_promtool
def test_the_rules_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    job = 'run="clicks",rank="0"'
    source = job + ',source="kafka:clicks"'
    cases = [
        ("ForebayStarved", {f"forebay_starvation_ratio{{{job}}}": "0.5x60"}),
        (
            "ForebayLagGrowing",
            {f"forebay_source_lag_seconds{{{source}}}": "0+30x60"},
        ),
        (
            "ForebayDeadLetters",
            {
                f"forebay_dead_rows_total{{{job}}}": "0+600x60",
                f"forebay_rows_total{{{job}}}": "0x60",
            },
        ),
        ("ForebayReaderStalled", {f'forebay_splits{{{source},state="STALLED"}}': "1x60"}),
        (
            "ForebayNoBatches",
            {
                f"forebay_batches_total{{{job}}}": "7x60",
                f"forebay_source_lag_records{{{source}}}": "9x60",
                f"forebay_job_running{{{job}}}": "1x60",
            },
        ),
    ]
    healthy = {
        f"forebay_starvation_ratio{{{job}}}": "0.01x60",
        f"forebay_source_lag_seconds{{{source}}}": "90x60",
        f"forebay_source_lag_records{{{source}}}": "9x60",
        f"forebay_dead_rows_total{{{job}}}": "0+1x60",
        f"forebay_rows_total{{{job}}}": "0+60000x60",
        f"forebay_batches_total{{{job}}}": "0+60x60",
        f"forebay_job_running{{{job}}}": "1x60",
        f'forebay_splits{{{source},state="STALLED"}}': "0x60",
    }
    tests = [of_rule(name, series, True) for name, series in cases]
    tests += [of_rule(name, healthy, False) for name, _ in cases]
    file = tmp_path / "tests.yaml"
    rules = str(FOLDER / "alerts.yaml")
    file.write_text(yaml.safe_dump({"rule_files": [rules], "tests": tests}))
    judged("test", "rules", str(file))


def of_rule(name: str, series: Mapping[str, str], fires: bool) -> dict[str, Any]:
    """A test in promtool's words: whether the rule fires after half an hour."""
    firing = {
        "expr": f'count by (alertname) (ALERTS{{alertname="{name}",alertstate="firing"}})',
        "eval_time": "30m",
        "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1}] if fires else [],
    }
    return {
        "interval": "1m",
        "input_series": [{"series": k, "values": v} for k, v in series.items()],
        "promql_expr_test": [firing],
    }


def judged(*command: str, given: bytes | None = None) -> None:
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *command], input=given, capture_output=True, timeout=60)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
