// In a search, lessons come before other pages that have the words in their text alone, and after those that have them in a title.
const LESSONS = new Set([
  "attention", "scores", "scale", "softmax", "masks", "projections", "heads-lesson", "layer-in-code", "positions", "block", "own-heads",
]);
var Scorer = {
  score: ([page, title, anchor, description, score]) => score + (LESSONS.has(page) ? 9 : 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
