// The verdict on top: one sentence, the shares that it is about, and how it is known.

import { byId, el, mark, refill, say } from "./dom.js";
import { percent, seconds } from "./format.js";

export const PARTS = ["starved", "copy", "compute", "communication", "other"];
export const PART_NAMES = {
  starved: "waits for data",
  copy: "copies to the device",
  compute: "computes",
  communication: "waits for ranks",
  other: "other",
};
const CAUSES = {
  unknown: ["too early to say", "quiet"],
  compute: ["healthy", "ok"],
  source: ["source is the limit", "bad"],
  stages: ["stages are the limit", "bad"],
  gil: ["interpreter lock", "bad"],
  handover: ["hand-over is the limit", "bad"],
  copy: ["copy is the limit", "warn"],
  host: ["host is the limit", "warn"],
  pause: ["paused", "warn"],
  communication: ["communication", "warn"],
  peer: ["waits for a rank", "warn"],
  draining: ["no trainer", "quiet"],
  ended: ["ended", "quiet"],
};
let spokenCause = "";

export function showVerdict(rank) {
  const verdict = rank.verdict;
  const [words, tone] = CAUSES[verdict.cause] ?? [verdict.cause, "quiet"];
  const pill = byId("verdict-cause");
  say(pill, words);
  mark(pill, "data-tone", tone);
  mark(document.querySelector(".verdict"), "data-tone", tone);
  // The figures below are of fewer seconds: right after a change the two may differ.
  say(byId("verdict-of"), Number.isFinite(verdict.seconds) ? `of the last ${seconds(Math.round(verdict.seconds))}` : "");
  say(byId("verdict-sentence"), verdict.sentence);
  showShares(verdict.shares);
  list(byId("verdict-evidence"), verdict.evidence, "Nothing yet.");
  list(byId("verdict-guess"), verdict.guess, "");
  byId("verdict-guess-box").hidden = verdict.guess.length === 0;
  say(byId("verdict-advice"), verdict.advice);
  byId("verdict-advice-box").hidden = verdict.advice === "";
  // Said aloud when the cause changes, not each second with other figures.
  if (verdict.cause !== spokenCause) {
    spokenCause = verdict.cause;
    say(byId("spoken"), `Verdict: ${verdict.sentence}`);
  }
}

function showShares(shares) {
  const known = PARTS.filter((part) => Number.isFinite(shares[part]));
  const bar = byId("verdict-bar");
  const words = known.map((part) => `${PART_NAMES[part]} ${percent(shares[part])}`).join(", ");
  mark(bar, "aria-label", `Where the trainer's time goes: ${words || "not known"}`);
  const pieces = known.map((part) => {
    const piece = el("span", { class: `piece part-${part}` });
    piece.style.flexGrow = Math.max(shares[part], 0.0001);
    return piece;
  });
  bar.replaceChildren(...pieces);
  refill(
    byId("verdict-legend"),
    known.map((part) =>
      el("li", {}, el("span", { class: `swatch part-${part}` }), `${PART_NAMES[part]} `,
        el("b", {}, percent(shares[part]))),
    ),
  );
}

function list(element, sentences, nothing) {
  const shown = sentences.length ? sentences : nothing ? [nothing] : [];
  refill(element, shown.map((sentence) => el("li", {}, sentence)));
}
