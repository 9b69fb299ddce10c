// Updates the live part of the page, and sorts tables. The order, the focus, fields in use, open details and scroll
// positions are kept.
"use strict";
const live = document.getElementById("live");
const state = document.getElementById("state");

function show(html) {
  const focused = document.activeElement && live.contains(document.activeElement) ? document.activeElement.id : "";
  const open = new Set([...live.querySelectorAll("details[open]")].map((one) => one.id));
  const scrolled = [...live.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
  const used = [...live.querySelectorAll("input[id]")].filter(
    (one) => one === document.activeElement || one.value !== one.defaultValue);
  live.innerHTML = html;
  if (order) live.querySelectorAll("table[data-whole]").forEach(sort);
  used.forEach((one) => document.getElementById(one.id)?.replaceWith(one));
  live.querySelectorAll("details").forEach((one) => { one.open = open.has(one.id); });
  live.querySelectorAll(".scroll").forEach((one, i) => { one.scrollLeft = scrolled[i] || 0; });
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
}

// The order that was chosen on this page: the id of a column's button, and the direction.
let order = null;

// The value of a cell: a number or a text in lower case. Without a value the row is last in both directions.
function valueOf(cell, numbers) {
  const text = (cell.dataset.sort ?? cell.textContent).trim();
  if (/^[-–]?$/.test(text)) return null;
  if (!numbers) return text.toLowerCase();
  const number = Number(text.replace(/,/g, ""));
  return Number.isNaN(number) ? null : number;
}

// Sorts a table whose rows are all on the page, by the rules of sorting.py. Equal rows stay in the order of the page.
function sort(table) {
  const head = document.getElementById(order.id)?.closest("th");
  if (!head || head.closest("table") !== table) return;
  const column = head.cellIndex, numbers = "numbers" in head.dataset, sign = order.descending ? -1 : 1;
  const rows = [...table.tBodies[0].rows].filter((row) => row.cells.length > column);
  rows.forEach((row, place) => { row.dataset.place ??= place; });
  const keyed = rows.map((row) => [valueOf(row.cells[column], numbers), Number(row.dataset.place), row]);
  keyed.sort(([a, i], [b, j]) => {
    if (a === null || b === null || a === b) return (a === null) - (b === null) || i - j;
    return a < b ? -sign : sign;
  });
  table.tBodies[0].append(...keyed.map(([, , row]) => row));
  table.querySelectorAll("th[aria-sort]").forEach((one) => one.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", order.descending ? "descending" : "ascending");
}

// A table with more pages is sorted by the console: its buttons send the form "sort".
addEventListener("click", (event) => {
  const button = event.target.closest("table[data-whole] button[name=sort]");
  if (!button) return;
  event.preventDefault();
  const head = button.closest("th"), sorted = head.getAttribute("aria-sort");
  order = { id: button.id, descending: sorted ? sorted === "ascending" : "numbers" in head.dataset };
  sort(button.closest("table"));
  const url = new URL(location.href);
  url.searchParams.set("sort", (order.descending ? "-" : "") + button.id.slice("sort-".length));
  history.replaceState(null, "", url);
});

// Whether text of the page is selected. The selected text of a field does not count: it stays selected when the focus leaves.
function isReading() {
  return !getSelection().isCollapsed;
}

let source;
let again = 0;

// A browser repeats a connection that broke. It does not repeat one that was answered with an error.
function follow() {
  source = new EventSource("/live?path=" + encodeURIComponent(live.dataset.path));
  source.onmessage = (event) => {
    const news = JSON.parse(event.data);
    if (!isReading()) show(news.html);
    state.textContent = news.state;
  };
  source.addEventListener("wrong", (event) => { state.textContent = "stopped: " + JSON.parse(event.data); });
  source.onerror = (event) => {
    state.textContent = "the console does not answer, trying again";
    if (event.target.readyState === EventSource.CLOSED) again = setTimeout(follow, 3000);
  };
}

if (live && live.dataset.path && state) {
  follow();
  addEventListener("pagehide", () => { clearTimeout(again); source.close(); });
  addEventListener("pageshow", (event) => { if (event.persisted) follow(); }); // a page that the browser kept
}
