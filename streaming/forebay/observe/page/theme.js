// Before anything is drawn, so that a dark page does not begin white.
"use strict";
(() => {
  try {
    const chosen = localStorage.getItem("forebay-theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch {
    // No storage in this browser: the system's theme it is.
  }
})();
