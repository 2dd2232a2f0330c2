/* Lessons stand first among the results of the search, and each result has the words around what was found. */
"use strict";
const SEARCH_TERMS = (new URLSearchParams(location.search).get("q") ?? "").toLowerCase().split(/[^\p{L}\p{N}]+/u).filter(Boolean);
var Scorer = {
  score: ([page, , , , score]) => score + (SEARCH_FIRST.includes(page) ? 100 : 0) + (SEARCH_TERMS.some(term => page.includes(term)) ? 50 : 0),
  objNameMatch: 11, objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 }, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 2,
};
document.addEventListener("DOMContentLoaded", () => {
  const AROUND = 110;
  const place = text => Math.min(...SEARCH_TERMS.map(term => text.toLowerCase().indexOf(term)).filter(at => at >= 0));
  function excerpt(address) {
    const page = SEARCH_TEXTS[address.pathname.split("/").pop().replace(/\.html$/, "")] ?? {};
    const own = page[address.hash.slice(1)];
    const text = [own, ...Object.values(page)].find(one => one && Number.isFinite(place(one))) ?? own ?? Object.values(page)[0];
    if (!text) return null;
    const at = Number.isFinite(place(text)) ? place(text) : 0, start = Math.max(0, at - AROUND), line = document.createElement("p");
    line.className = "context";
    const shown = (start ? "… " : "") + text.slice(start, at + AROUND) + (at + AROUND < text.length ? " …" : "");
    const found = new RegExp(`(${SEARCH_TERMS.map(term => RegExp.escape?.(term) ?? term).join("|")})`, "giu");
    shown.split(found).forEach((part, i) => line.append(i % 2 ? Object.assign(document.createElement("b"), { textContent: part }) : part));
    return line;
  }
  new MutationObserver(() => {
    for (const item of document.querySelectorAll("#search-results li:not(:has(.context))")) {
      const link = item.querySelector("a"), line = link && excerpt(new URL(link.href));
      if (line) item.append(line);
    }
  }).observe(document.getElementById("search-results"), { childList: true, subtree: true });
});
