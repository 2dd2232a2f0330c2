"use strict";
// A link into a closed <details> opens it; browsers do not agree on doing so by themselves.
function openTarget() {
  let element = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const target = element;
  for (; element; element = element.parentElement) {
    if (element.tagName === "DETAILS") element.open = true;
  }
  if (target) target.scrollIntoView({ block: "center", inline: "nearest" });
}
addEventListener("hashchange", openTarget);
openTarget();
