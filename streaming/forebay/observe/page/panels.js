// The tiles, and the cards below the charts: ranks, scaling, dead letters, process and devices.

import { byId, el, refill, say } from "./dom.js";
import { bytes, clock, count, percent, plural, rate, seconds, UNKNOWN } from "./format.js";
import { rankName } from "./ranks.js";
import { PART_NAMES, PARTS } from "./verdict.js";

const SHOWN = 12;

export function showTiles(rank) {
  const now = rank.now;
  const tiles = [
    ["rows/s", rate(now.rows), `${count(rank.rows)} in all`],
    ["starved", percent(now.starved), rank.trainer.there ? (rank.trainer.on_device ? "device time" : "host time") : "no trainer"],
    ["lag", count(now.lag_records), "records"],
    ["behind", seconds(now.lag_seconds), "oldest record"],
    ["freshness", seconds(now.fresh_p95), `p95; median ${seconds(now.fresh_p50)}`],
    ["dead letters", count(rank.letters.total), now.letters === null ? UNKNOWN : `${rate(now.letters)} /s`],
  ];
  refill(byId("tiles"), tiles.map(([name, value, more]) =>
    el("div", { class: "tile" }, el("dt", {}, name), el("dd", { class: "big" }, value), el("dd", { class: "facts" }, more))));
}

export function showRanks(picture, rank) {
  const told = rank.ranks.length > 0 ? rank.ranks.map(fromPeer) : picture.ranks.map((r) => ({ ...r.now, name: rankName(picture, r.key) }));
  const worst = Math.max(...told.map((r) => r.starved ?? 0));
  const head = el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Rank"),
    ...PARTS.map((part) => el("th", { scope: "col", class: "figure", title: PART_NAMES[part] }, part))));
  const body = el("tbody", {}, ...told.map((r) => {
    const starves = told.length > 1 && r.starved !== null && r.starved === worst && worst > 0.05;
    return el("tr", { "data-starved": starves ? "" : null },
      el("th", { scope: "row" }, r.name, starves ? el("b", {}, " starves") : null),
      ...PARTS.map((part) => el("td", { class: "figure" }, percent(r[part]))));
  }));
  refill(byId("ranks"), [el("caption", {}, "Shares of each rank's time"), head, body]);
}

const fromPeer = (r) => ({ ...r, name: `rank ${r.rank}` });

export function changes(rank) {
  return rank.decisions.filter((d) => d.workers !== d.before);
}

export function decisionWords(d) {
  const done = d.applied ? "" : " (dry run)";
  return `${d.pool}: ${count(d.before)} to ${count(d.workers)} workers${done}`;
}

export function showDecisions(rank) {
  const newest = rank.decisions.slice(-SHOWN).reverse();
  const items = newest.map((d) => {
    const holds = d.workers === d.before;
    const what = holds ? `${d.pool}: holds ${plural(d.workers, "worker")}` : decisionWords(d);
    const often = d.times > 1 ? `, ${count(d.times)} times since ${clock(d.since)}` : "";
    return entry(d.at, what + often, d.reason, holds ? "quiet" : d.workers > d.before ? "up" : "down");
  });
  refill(byId("decisions"), items.length ? items : [el("li", { class: "nothing" }, noDecision(rank.pools))]);
}

// Whether an autoscaler runs is not told where it did nothing: what is known are the pools' bounds.
function noDecision(pools) {
  const fixed = pools.length > 0 && pools.every((p) => p.least === p.most);
  return fixed ? "The number of workers is fixed." : "No change of the number of workers was decided.";
}

export function showLetters(rank) {
  const letters = rank.letters;
  say(byId("letters-total"), letters.total ? `${plural(letters.total, "record")} could not be processed` : "None: every record could be processed.");
  const kinds = Object.entries(letters.by_reason).sort((a, b) => b[1] - a[1]);
  refill(byId("letters-kinds"), kinds.map(([kind, n]) => el("li", {}, el("b", {}, count(n)), ` ${kind}`)));
  refill(byId("letters"), letters.last.slice(-SHOWN).reverse().map((l) =>
    entry(l.at, `${l.stage}: ${l.split} @ ${count(l.offset)}`, l.reason, "bad")));
}

function entry(at, what, why, tone) {
  return el("li", { "data-tone": tone }, el("time", {}, clock(at)), el("b", {}, what), el("span", { class: "reason" }, why));
}

export function showMachine(rank) {
  const p = rank.process;
  pairs(byId("process"), [
    ["memory", bytes(p.rss_bytes)],
    ["with children", bytes(p.pss_bytes)],
    ["CPUs busy", `${rate(rank.cpu)} of ${rate(p.cpus)}`],
    ["interpreter lock", percent(p.gil)],
    ["threads", count(p.threads)],
  ]);
  const gpus = rank.gpus.map(gpu);
  refill(byId("gpus"), gpus.length ? gpus : [el("li", { class: "nothing" }, "No GPU is watched.")]);
  const counted = Object.entries(rank.reader);
  byId("reader-box").hidden = counted.length === 0;
  pairs(byId("reader"), counted.map(([name, value]) => [name, count(value)]));
}

// `busy` is what NVML calls utilisation: the share of time in which any kernel ran at all.
function gpu(g) {
  const facts = [
    `a kernel runs ${percent(g.busy)}`,
    `SMs active ${percent(g.sm_active)}`,
    `memory ${bytes(g.memory_used)} of ${bytes(g.memory_total)}, ours ${bytes(g.memory_mine)}`,
    `${rate(g.watts)} of ${rate(g.watts_limit)} W`,
    `${rate(g.celsius)} °C`,
  ];
  const slow = g.throttled?.length ? `slowed: ${g.throttled.join(", ")}` : "";
  return el("li", {}, el("b", { title: g.uuid }, `${g.mig ? "MIG " : ""}${g.uuid.slice(0, 24)}`),
    el("span", {}, facts.join(" · ")),
    ...[slow, g.trouble].filter(Boolean).map((words) => el("span", { class: "trouble" }, words)));
}

function pairs(element, items) {
  refill(element, items.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}
