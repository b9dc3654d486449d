// The topology as a flow: sources, stages on their pool of workers, batches, the trainer.

import { byId, el, refill } from "./dom.js";
import { bytes, count, percent, plural, rate, seconds, UNKNOWN } from "./format.js";

const LIMITS = {
  source: "source", stages: "stage", gil: "stage", handover: "batch", copy: "trainer",
  compute: "trainer", host: "trainer", pause: "trainer", communication: "trainer", peer: "trainer",
};

export function showFlow(rank) {
  const limit = LIMITS[rank.verdict.cause];
  const read = rank.stages.length ? rank.stages[0].rows_in : rank.now.rows;
  const nodes = [
    step("sources", rank.sources.map((s) => sourceNode(s, limit)), null),
    step("stages", [pool(rank, limit)], read),
    step("batches", [batchNode(rank, limit)], made(rank, read)),
    step("trainer", [trainerNode(rank, limit)], rank.now.rows),
  ];
  refill(byId("flow"), nodes.filter((node) => node !== null));
}

function made(rank, read) {
  return rank.stages.length ? rank.stages.at(-1).rows_out : read;
}

// A place in the flow, with the rows a second that come to it.
function step(name, children, rows) {
  const there = children.filter((child) => child !== null);
  if (there.length === 0) return null;
  const arrow =
    rows === null && name === "sources"
      ? null
      : el("div", { class: "arrow", "data-still": rows === 0 || null },
          el("span", { class: "flowing" }, `${rate(rows)} rows/s`));
  return el("li", { class: `step step-${name}` }, arrow, el("div", { class: "nodes" }, ...there));
}

function node(kind, kicker, name, limited, ...content) {
  return el("article", { class: "node", "data-kind": kind, "data-limit": limited || null },
    el("p", { class: "kicker" }, kicker, limited ? el("span", { class: "limit" }, "the limit") : null),
    el("h3", { title: name }, name),
    ...content,
  );
}

function facts(...pairs) {
  return el("dl", { class: "pairs" },
    ...pairs.filter(Boolean).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

function meter(label, share) {
  const track = el("span", { class: "track", "aria-hidden": "true" });
  const fill = el("span", { class: "fill" });
  fill.style.width = share === null ? "0" : `${Math.round(share * 100)}%`;
  track.append(fill);
  return el("p", { class: "meter", "data-full": share !== null && share > 0.9 ? "" : null },
    el("span", {}, label), el("b", {}, percent(share)), track);
}

function sourceNode(source, limit) {
  const states = ["OK", "BEHIND", "STALLED", "STOPPED"].filter((state) => source.states[state]);
  return node("source", "source", source.name, limit === "source",
    facts(
      ["lag", source.lag_records === null ? UNKNOWN : plural(source.lag_records, "record")],
      ["behind", seconds(source.lag_seconds)],
      ["splits", count(source.splits)],
      ...states.map((state) => [state, count(source.states[state])]),
    ));
}

function pool(rank, limit) {
  if (rank.stages.length === 0 && rank.pools.length === 0) return null;
  const busiest = Math.max(...rank.stages.map((s) => s.share ?? 0));
  const stages = rank.stages.map((s) =>
    node("stage", "stage", s.name, limit === "stage" && (s.share ?? 0) === busiest,
      meter("of the pool", s.share),
      facts(["out", `${rate(s.rows_out)} rows/s`],
        s.failed ? ["failed", count(s.failed)] : null)));
  const captions = rank.pools.map((p) =>
    el("p", { class: "pool" },
      el("b", {}, plural(p.workers, "worker")),
      ` of ${p.most === null ? `${p.least} or more` : p.least === p.most ? p.most : `${p.least} to ${p.most}`}`,
      p.starting ? `, ${count(p.starting)} starting` : "",
      p.replaced ? `, ${count(p.replaced)} replaced` : "",
      ` · ${percent(p.busy)} busy · ${plural(p.queued, "slice")} queued`));
  return el("div", { class: "poolbox" }, ...captions, el("div", { class: "stages", "data-many": stages.length > 4 ? "" : null }, ...stages));
}

function batchNode(rank, limit) {
  const b = rank.batch;
  return node("batch", "batches", `${count(b.ready)} of ${count(b.prefetch)} ready`, limit === "batch",
    meter("waits for rows", b.waits_for_rows),
    facts(
      ["made", `${rate(b.per_second)} /s`],
      ["in flight", bytes(b.bytes_in_flight)],
      ["at most", bytes(b.max_bytes)],
    ));
}

function trainerNode(rank, limit) {
  const t = rank.trainer;
  if (!t.there) {
    return node("trainer", "trainer", "none: the stream is drained", false,
      facts(["batches", `${rate(rank.batch.per_second)} /s`]));
  }
  return node("trainer", t.on_device ? "trainer, device time" : "trainer, host time",
    `${rate(t.steps_per_second)} steps/s`, limit === "trainer",
    meter("starved", rank.now.starved),
    facts(
      ["step", seconds(t.step_p50)],
      ["step p95", seconds(t.step_p95)],
      ["wait p95", seconds(t.wait_p95)],
    ));
}
