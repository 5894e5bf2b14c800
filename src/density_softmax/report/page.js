"use strict";
// A click on a head sorts by its column, a second one the other way; what is missing stays last.
function value(row, column) {
  const cell = row.cells[column];
  if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
  return cell.tagName === "TH" ? cell.textContent : NaN;
}

function compare(a, b) {
  if (typeof a === "string") return a.localeCompare(b);
  return a - b;
}

function sort(head) {
  const body = head.closest("table").tBodies[0];
  const upwards = head.getAttribute("aria-sort") !== "ascending";
  for (const other of head.parentElement.cells) other.setAttribute("aria-sort", "none");
  head.setAttribute("aria-sort", upwards ? "ascending" : "descending");
  const entries = Array.from(body.rows, (row) => [value(row, head.cellIndex), row]);
  const present = entries.filter(([key]) => !Number.isNaN(key));
  const missing = entries.filter(([key]) => Number.isNaN(key));
  present.sort(([a], [b]) => (upwards ? compare(a, b) : compare(b, a)));
  body.append(...present.concat(missing).map(([, row]) => row));
}

for (const button of document.querySelectorAll("table.sortable thead button")) {
  button.addEventListener("click", () => sort(button.parentElement));
}

// A link to a section opens it. Print opens every section, and closes those again that were closed.
function unfold() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target instanceof HTMLDetailsElement) target.open = true;
}

const opened = [];
addEventListener("hashchange", unfold);
addEventListener("beforeprint", () => {
  for (const section of document.querySelectorAll("details:not([open])")) {
    section.open = true;
    opened.push(section);
  }
});
addEventListener("afterprint", () => {
  while (opened.length) opened.pop().open = false;
});
for (const link of document.querySelectorAll("nav a")) link.addEventListener("click", () => setTimeout(unfold));
unfold();
