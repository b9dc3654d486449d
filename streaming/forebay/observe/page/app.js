// Takes the stream of events, and shows the newest picture.

import { Chart } from "./charts.js";
import { byId, el, mark, refill, say } from "./dom.js";
import { showFlow } from "./flow.js";
import { clock, percent, plural, seconds, short, bytes } from "./format.js";
import { changes, decisionWords, showDecisions, showLetters, showMachine, showRanks, showTiles } from "./panels.js";
import { rankName } from "./ranks.js";
import { durations, figures, shares } from "./scale.js";
import { setUpSplits, showSplits } from "./splits.js";
import { PART_NAMES, PARTS, showVerdict } from "./verdict.js";

const LOST_AFTER_SECONDS = 5;
const SILENT_AFTER_SECONDS = 10;
const RETRY_MS = [500, 1000, 2000, 5000];
const KEPT_POINTS = 900;
const THEMES = ["auto", "light", "dark"];

const points = new Map(); // rank key -> points, oldest first
let picture = null;
let heard = null; // by this page's own clock: the job's may differ
let chosen = null; // the rank that was picked; null: the one that is worst off
let charts = [];
let retries = 0;

function connect() {
  const stream = new EventSource("/events");
  stream.addEventListener("points", (event) => takePoints(JSON.parse(event.data)));
  stream.addEventListener("picture", (event) => {
    picture = JSON.parse(event.data);
    heard = performance.now();
    retries = 0;
    if (!document.hidden) show();
  });
  stream.addEventListener("error", () => {
    showConnection();
    // The browser tries again by itself unless it was refused for good.
    if (stream.readyState === EventSource.CLOSED) {
      setTimeout(connect, RETRY_MS[Math.min(retries, RETRY_MS.length - 1)]);
      retries += 1;
    }
  });
}

function takePoints({ anew, columns, ranks }) {
  if (anew) points.clear();
  for (const [key, rows] of Object.entries(ranks)) {
    const kept = points.get(key) ?? [];
    for (const row of rows) kept.push(Object.fromEntries(columns.map((name, i) => [name, row[i]])));
    points.set(key, kept.slice(-KEPT_POINTS));
  }
}

function show() {
  showConnection();
  if (picture === null) return;
  const rank = picture.ranks.find((r) => r.key === chosen) ?? picture.ranks.find((r) => r.key === picture.worst);
  showSplits(picture);
  if (rank === undefined) return;
  showHead(rank);
  showVerdict(rank);
  showTiles(rank);
  showFlow(rank);
  const marks = changes(rank).map((d) => ({ at: d.at, text: `${clock(d.at)} ${decisionWords(d)}: ${d.reason}` }));
  for (const chart of charts) chart.update(points.get(rank.key) ?? [], marks);
  showRanks(picture, rank);
  showDecisions(rank);
  showLetters(rank);
  showMachine(rank);
}

function showHead(rank) {
  const job = rank.job;
  say(byId("job-name"), job.name);
  document.title = `${job.name} – Forebay`;
  const of = job.world_size > 1 ? `rank ${job.rank} of ${job.world_size}` : "one rank";
  const runs = seconds(Math.max(0, picture.at - rank.age - job.began));
  say(byId("job-facts"), `${of} on ${job.host}, process ${job.pid}, engine ${job.engine}, ${rank.ended ? "ran" : "runs"} for ${runs}`);
  say(byId("foot"), `Forebay ${job.version}${job.topology ? ` · ${job.topology}` : ""} · pass ${rank.passes + 1} · ${plural(rank.batches, "batch", "batches")} so far`);
  const choice = byId("rank");
  byId("rank-choice").hidden = picture.ranks.length < 2;
  const options = ["", ...picture.ranks.map((r) => r.key)];
  refill(choice, options.map((key) => el("option", { value: key }, key ? rankName(picture, key) : "the worst off")));
  choice.value = chosen ?? "";
}

// The state of the connection and of the run: a word in the head, and a banner when it matters. Its
// ages stand apart from what is read aloud, since they change each second.
function showConnection() {
  const age = heard === null ? null : (performance.now() - heard) / 1000;
  const lost = age !== null && age > LOST_AFTER_SECONDS;
  const ended = picture !== null && picture.ranks.length > 0 && picture.ranks.every((r) => r.ended);
  const silent = (picture?.ranks ?? []).filter((r) => !r.ended && r.age > SILENT_AFTER_SECONDS);
  const gone = (picture?.targets ?? []).filter((t) => t.trouble);
  let [word, tone, banner, old] = ["live", "ok", "", ""];
  if (ended) {
    const how = [...new Set(picture.ranks.map((r) => r.ended))].join(", ");
    [word, tone, banner] = [`ended: ${how}`, "quiet", `The run ended (${how}). This is its last state.`];
  } else if (lost) {
    [word, tone] = ["connection lost", "bad"];
    [banner, old] = ["Connection lost, trying again.", `What you see is ${seconds(Math.round(age))} old.`];
  } else if (age === null) {
    [word, tone] = ["connecting", "quiet"];
  } else if (gone.length || silent.length) {
    [word, tone] = ["silent", "warn"];
    banner = gone.length
      ? gone.map((t) => `${t.name}: ${t.trouble}.`).join(" ")
      : `${silent.map((r) => rankName(picture, r.key)).join(", ")}: nothing new comes.`;
    old = lastHeard(gone.length ? gone.map((t) => t.silent_seconds) : silent.map((r) => r.age));
  } else if (picture.ranks.length === 0) {
    [word, tone] = ["waiting for the run", "quiet"];
  }
  say(byId("status"), word);
  mark(byId("status"), "data-tone", tone);
  const element = byId("banner");
  mark(element, "data-tone", tone);
  say(byId("banner-words"), banner);
  say(byId("banner-age"), old);
  element.hidden = banner === "";
}

function lastHeard(ages) {
  const known = ages.filter((age) => age !== null);
  return known.length ? `Last heard ${seconds(Math.round(Math.max(...known)))} ago.` : "Nothing was heard yet.";
}

function setUpCharts() {
  const place = byId("charts");
  const plain = (value) => short(value);
  charts = [
    new Chart(place, { title: "Where the trainer's time goes", stacked: true, format: percent, scale: shares(percent),
      series: PARTS.map((part) => ({ key: part, name: PART_NAMES[part], class: `part-${part}` })) }),
    new Chart(place, { title: "Rows a second", format: plain, scale: figures(plain), series: [{ key: "rows", name: "given to the trainer", class: "line-1" }] }),
    new Chart(place, { title: "Freshness: from event to step", format: seconds, scale: durations,
      series: [{ key: "fresh_p50", name: "median", class: "line-1" }, { key: "fresh_p95", name: "p95", class: "line-2" }] }),
    new Chart(place, { title: "Lag in records", format: plain, scale: figures(plain), series: [{ key: "lag_records", name: "of all splits", class: "line-1" }] }),
    new Chart(place, { title: "Workers, and decisions to change them", format: plain, scale: figures(plain), steps: true, series: [{ key: "workers", name: "workers", class: "line-1" }] }),
    new Chart(place, { title: "Memory of the process", format: bytes, scale: figures(bytes, 2), series: [{ key: "rss", name: "resident", class: "line-1" }] }),
  ];
}

function setUpTheme() {
  const button = byId("theme");
  const current = () => document.documentElement.dataset.theme ?? "auto";
  const label = () => say(button, `Theme: ${current()}`);
  button.addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(current()) + 1) % THEMES.length];
    if (next === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    try {
      localStorage.setItem("forebay-theme", next);
    } catch {
      // No storage in this browser: the choice lasts as long as the page.
    }
    label();
  });
  label();
}

byId("rank").addEventListener("change", (event) => {
  chosen = event.target.value || null;
  show();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) show();
});
setUpTheme();
setUpCharts();
setUpSplits();
connect();
setInterval(showConnection, 1000);
