// Facets: classes by frequency, histograms of numbers, missing fields. Each is a button that filters.

import { button, columnName, columnValue, count, fieldName, isBytes, make, several, short, size } from "./dom.js";

const VALUES_SHOWN = 8; // of a facet, before "show more"

const bound = (column, value) => (isBytes(column) ? size(value) : short(value));

// Return the words for a filter: "cls = cat", "jpg.width 300 to 400", "without json", "broken".
export function filterName(filter) {
  if ("missing" in filter) return `without ${fieldName(filter.missing)}`;
  if (filter.broken) return "broken";
  const name = columnName(filter.column);
  if ("from" in filter) return `${name} ${bound(filter.column, filter.from)} to ${bound(filter.column, filter.to)}`;
  if (filter.value === null) return `${name}: none`;
  return `${name} = ${columnValue(filter.column, filter.value) || '""'}`;
}

export const sameFilter = (one, other) => JSON.stringify(one) === JSON.stringify(other);

// Return the elements of facets. `samples`: how many the query has; `fields`: kinds of all fields by name; values of
// fields are classes; `filters` are in force; `toggle(filter)` acts.
export function facetCards(facets, { samples, fields, filters, toggle }) {
  const rank = (facet) => rankOf(facet, fields);
  const active = (filter) => filters.some((other) => sameFilter(filter, other));
  const shown = facets.filter((facet) => !isEmpty(facet) && !isPlain(facet, samples, active));
  shown.sort((one, other) => rank(one) - rank(other));
  const cards = shown.map((facet) => draw(facet, samples, active, toggle));
  for (const [n, node] of cards.entries()) {
    const key = name(shown[n]);
    node.dataset.facet = key;
    node.open = folds.get(key) ?? rank(shown[n]) < FOLDED;
    node.addEventListener("toggle", () => folds.set(key, node.open));
  }
  return cards;
}

// Replace the cards in a list; what has the focus in one of them gives it to what is pressed in its successor.
export function replaceCards(list, cards) {
  const { activeElement } = document;
  const focused = list.contains(activeElement) ? activeElement.closest("[data-facet]")?.dataset.facet : null;
  list.replaceChildren(...cards);
  const card = cards.find((node) => node.dataset.facet === focused);
  if (card) (card.querySelector("[aria-pressed=true]") || card.querySelector("summary")).focus();
  else if (focused) list.parentNode.focus();
}

// What a person looks for first; sizes of single fields, and whole JSON, are folded.
const FOLDED = 5;
const folds = new Map(); // name of a facet: open or folded by hand, so that another query keeps it
const name = (facet) => facet.column ?? `(${facet.kind})`;

function rankOf(facet, fields) {
  if (facet.kind === "broken") return 0;
  if (facet.kind === "missing") return 4;
  if (facet.column === "__size__") return 2;
  if (isBytes(facet.column) || fields.get(facet.column) === "json") return FOLDED;
  return facet.kind === "values" && fields.has(facet.column) ? 1 : 3;
}

// True for a facet with nothing to press, or of a kind that this page does not know.
function isEmpty({ kind, values: list, bins, missing: without, fields, count: number }) {
  if (kind === "values") return !list.length;
  if (kind === "histogram") return !bins.length && !without;
  if (kind === "missing") return !fields.some((entry) => entry.count);
  return kind !== "broken" || !number;
}

// True if all samples have one value: there is nothing to choose.
function isPlain(facet, samples, active) {
  if (facet.kind !== "values" || facet.values.length !== 1 || facet.others) return false;
  const [{ value, count: number }] = facet.values;
  return number === samples && !active({ column: facet.column, value });
}

function draw(facet, samples, active, toggle) {
  if (facet.kind === "values") return values(facet, active, toggle);
  if (facet.kind === "histogram") return histogram(facet, active, toggle);
  if (facet.kind === "missing") return missing(facet, samples, active, toggle);
  return card("Broken", line({ broken: true }, "broken samples", facet.count, samples, active, toggle));
}

function card(title, ...body) {
  return make("details", { class: "card", open: true }, make("summary", { text: title }), ...body);
}

function line(filter, text, number, most, active, toggle) {
  const bar = make("span", { class: "level" });
  bar.style.width = `${(100 * number) / Math.max(most, 1)}%`;
  const pressed = active(filter);
  const node = button(
    "",
    () => toggle(filter),
    {
      class: "line",
      "aria-pressed": String(pressed),
      title: `${pressed ? "Remove the filter" : "Filter"}: ${filterName(filter)}`,
    },
  );
  node.append(
    make("span", { class: "name", text }),
    make("span", { class: "number", text: count(number) }),
    make("span", { class: "track", "aria-hidden": "true" }, bar),
  );
  return node;
}

function values(facet, active, toggle) {
  const most = Math.max(...facet.values.map((entry) => entry.count));
  const lines = facet.values.map(({ value, count: number }) => {
    const name = value === "" ? "empty" : columnValue(facet.column, value);
    return make("li", {}, line({ column: facet.column, value }, name, number, most, active, toggle));
  });
  const list = make("ul", {}, ...lines);
  const node = card(columnName(facet.column), list);
  const rest = lines.slice(VALUES_SHOWN + 1);
  if (rest.length) {
    const hidden = lines.slice(VALUES_SHOWN);
    for (const entry of hidden) entry.hidden = true;
    const more = button(`Show ${count(hidden.length)} more`, () => {
      for (const entry of hidden) entry.hidden = !entry.hidden;
      more.textContent = hidden[0].hidden ? `Show ${count(hidden.length)} more` : "Show fewer";
    }, { class: "link" });
    node.append(more);
  }
  if (facet.others) node.append(
    make("p", { class: "soft", text: `${several(facet.others, "sample")} with other values` }),
  );
  return node;
}

// One Tab stop for all bars. The arrows move among them, with Shift over several, and Enter filters; so does a drag.
function histogram({ column, bins, missing: without }, active, toggle) {
  const node = card(columnName(column));
  if (bins.length) node.append(...bars(column, bins, active, toggle));
  if (without) {
    const all = bins.reduce((sum, bin) => sum + bin.count, without);
    node.append(line({ column, value: null }, "none", without, all, active, toggle));
  }
  return node;
}

function bars(column, bins, active, toggle) {
  const most = Math.max(1, ...bins.map((bin) => bin.count));
  const caption = make("p", { class: "caption", "aria-hidden": "true" });
  const range = { first: 0, last: 0 }; // the bars from where a move began to where it is
  const extent = () => ({ from: Math.min(range.first, range.last), to: Math.max(range.first, range.last) });
  const words = ({ from, to }) => {
    const sum = bins.slice(from, to + 1).reduce((total, bin) => total + bin.count, 0);
    return `${bound(column, bins[from].from)} to ${bound(column, bins[to].to)}: ${count(sum)}`;
  };
  const rest = () => {
    caption.replaceChildren(
      make("span", { text: bound(column, bins[0].from) }),
      make("span", { text: bound(column, bins[bins.length - 1].to) }),
    );
    for (const bar of list) bar.classList.remove("chosen");
  };
  const move = (n, extend) => {
    range.last = n;
    if (!extend) range.first = n;
    const { from, to } = extent();
    caption.textContent = words(extent());
    for (const [i, bar] of list.entries()) bar.classList.toggle("chosen", i >= from && i <= to);
  };
  const press = () => toggle({ column, from: bins[extent().from].from, to: bins[extent().to].to });
  const list = bins.map((bin, n) => {
    const fill = make("span", { class: "fill" });
    fill.style.height = bin.count ? `max(2px, ${(100 * bin.count) / most}%)` : "0";
    const label = `${columnName(column)} ${words({ from: n, to: n })}`;
    const pressed = String(active({ column, from: bin.from, to: bin.to }));
    return make(
      "button",
      {
        type: "button",
        class: "bin",
        tabindex: n ? -1 : 0,
        "data-bin": n,
        "aria-label": label,
        "aria-pressed": pressed,
      },
      fill,
    );
  });
  const group = make(
    "div",
    {
      class: "bins",
      role: "group",
      "aria-label": `${columnName(column)}: histogram; arrow keys move, with Shift over several bars`,
    },
    ...list,
  );
  const binOf = (node) => {
    const bin = node?.closest?.(".bin");
    return bin && group.contains(bin) ? Number(bin.dataset.bin) : null;
  };
  let dragged = false;
  group.addEventListener("pointerdown", (event) => {
    dragged = binOf(event.target) !== null;
    if (dragged) move(binOf(event.target), false);
  });
  group.addEventListener("pointermove", (event) => {
    const n = binOf(document.elementFromPoint(event.clientX, event.clientY));
    if (n !== null) move(n, dragged);
  });
  group.addEventListener("pointerup", () => {
    if (dragged) press();
    dragged = false;
  });
  group.addEventListener("pointerleave", () => {
    dragged = false;
    rest();
  });
  group.addEventListener("focusout", rest);
  group.addEventListener("click", (event) => {
    if (event.detail) return; // of a pointer: done
    if (!list[range.last].contains(event.target)) move(binOf(event.target), false); // without a key before
    press();
  });
  group.addEventListener("keydown", (event) => rove(event, list, move));
  rest();
  return [group, caption];
}

function rove(event, list, move) {
  const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
  if (!step) return;
  event.preventDefault();
  event.stopPropagation();
  const from = Math.max(0, list.indexOf(document.activeElement));
  const to = Math.max(0, Math.min(list.length - 1, from + step));
  list[from].tabIndex = -1;
  list[to].tabIndex = 0;
  list[to].focus();
  move(to, event.shiftKey);
}

function missing(facet, samples, active, toggle) {
  const fields = facet.fields.filter((entry) => entry.count);
  const lines = fields.map(
    ({ field, count: number }) => make(
      "li",
      {},
      line({ missing: field }, `no ${fieldName(field)}`, number, samples, active, toggle),
    ),
  );
  return card("Missing fields", make("ul", {}, ...lines));
}
