// The page of tarshow --serve: what is shown is one value, `state`, which is in the address as well.

import { fromHash, NOTHING, request, sameQuery, toHash } from "./address.js";
import { getJson, Query } from "./api.js";
import { Choice } from "./choice.js";
import { button, columnName, count, find, make, say, several } from "./dom.js";
import { facetCards, filterName, replaceCards, sameFilter } from "./facets.js";
import { fillHelp, isTyping } from "./keys.js";
import { Sample } from "./sample.js";
import { Samples } from "./samples.js";

const REPLACED =
  "A shard was replaced since tarshow began: what is shown may be old. End tarshow, and start it again.";
const SLOW = 150; // milliseconds until a query shows that it is at work
const SETTLED = 300; // milliseconds from the last move to the address
const PLACEHOLDERS = {
  words: "words, or field==value",
  expression: "int(cls) > 3 and 'lake' in txt",
  sql: "\"jpg.width\" > 1000 AND cls = 'cat'",
};
const dialogs = [find("large"), find("goto"), find("help")];

let about = null;
let state = { ...NOTHING };
let query = null; // the answer that is shown
let answered = null; // the state that it answers
let running = null; // AbortController of a query
let choice = null;
let anchor = null; // index of the last marked sample, where a range begins
let closing = null; // changes to the state that the history goes back to
let moveTimer = null;

const samples = new Samples({
  open: (index) => open(index),
  mark: (index, extend) => mark(index, extend),
  isMarked: (position) => choice.has(position),
  sort: (column) => sortBy(column),
  moved: (first) => moved(first),
});
const sample = new Sample({
  filter: (filter) => go({ facets: [...state.facets, filter], open: null }),
  isFacet: (name) => about.columns.some((column) => column.name === name && column.facet),
});

// ---- state ----

// Change what is shown; with `replace` the history has no step for it.
function go(change, { replace = false, focus = false } = {}) {
  const next = { ...state, ...change };
  if (!sameQuery(next, state) && change.at === undefined) next.at = 0;
  clearTimeout(moveTimer);
  const opens = state.open === null && next.open !== null;
  const step = { opened: opens || (replace && history.state?.opened && next.open !== null) };
  if (replace) history.replaceState(step, "", toHash(next));
  else history.pushState(step, "", toHash(next));
  return apply(next, focus);
}

async function apply(next, focus = false) {
  const before = state;
  state = next;
  drawControls();
  if (!query || !sameQuery(before, next)) await run(focus);
  else if (before.view !== next.view) samples.setView(next.view);
  else if (before.at !== next.at) samples.go(next.at, { focus: false });
  if (state !== next) return; // and another one has come meanwhile
  if (next.open !== null && (before.open !== next.open || !sample.isOpen)) showLarge(next);
  else if (next.open === null && sample.isOpen) {
    const { current } = samples; // closing gives the focus back to where it was opened
    sample.close();
    samples.go(current);
  }
}

async function run(focus, error = "") {
  running?.abort();
  running = new AbortController();
  const { signal } = running;
  const slow = setTimeout(() => busy(true), SLOW);
  try {
    const asked = state;
    query = await Query.run(request(asked), signal);
    answered = asked;
    say(find("search-error"), error);
    anchor = null;
    samples.show(query, { about, view: state.view, sort: state.sort, at: state.at });
    drawCount();
    drawEmpty();
    if (focus && query.samples) samples.go(state.at);
    drawFacets(signal);
  } catch (error) {
    if (error.name === "AbortError") return;
    say(find("search-error"), error.message);
    await goBack();
  } finally {
    clearTimeout(slow);
    if (!signal.aborted) busy(false);
  }
}

// Show again what was shown before a question that has no answer; the text of the question stays to be corrected.
async function goBack() {
  const { text, language } = state;
  const isFirst = query === null;
  if (isFirst && sameQuery(state, NOTHING)) return;
  state = isFirst ? { ...NOTHING, view: state.view } : { ...answered, view: state.view, at: state.at };
  history.replaceState(history.state, "", toHash(state));
  drawControls();
  find("language").value = language;
  find("text").value = text;
  drawNote();
  if (isFirst) await run(false, find("search-error").textContent);
}

function busy(on) {
  find("wait").hidden = !on;
  find("area").setAttribute("aria-busy", String(on));
  if (on) find("count").textContent = "Searching …";
  else drawCount();
}

function moved(first) {
  clearTimeout(moveTimer);
  moveTimer = setTimeout(() => {
    if (!query || first < 0 || state.at === first) return;
    state = { ...state, at: first };
    history.replaceState(history.state, "", toHash(state));
  }, SETTLED);
}

// ---- what is around the samples ----

function drawControls() {
  find("language").value = state.language;
  find("text").value = state.text;
  find("text").placeholder = PLACEHOLDERS[state.language];
  find("sort").value = state.sort ? state.sort.column : "";
  find("direction").disabled = !state.sort;
  find("direction").textContent = state.sort?.descending ? "↓" : "↑";
  find("direction").setAttribute(
    "aria-label",
    state.sort?.descending ? "Descending; make it ascending" : "Ascending; make it descending",
  );
  find("view-grid").setAttribute("aria-pressed", String(state.view === "grid"));
  find("view-list").setAttribute("aria-pressed", String(state.view === "list"));
  drawNote();
  drawChips();
}

function drawNote() {
  const notes = {
    words: about.searched ? `in ${about.searched}` : "",
    expression: "as for tarfilter -S",
    sql: "what follows WHERE",
  };
  find("search-note").textContent = notes[find("language").value];
}

// Filters in force: the name of each, and the change of the state that removes it.
function filters() {
  const { text, language, facets } = state;
  const names = { words: `“${text}”`, expression: `-S ${text}`, sql: `WHERE ${text}` };
  const search = text ? [{ name: names[language], change: { text: "" } }] : [];
  const without = (facet) => ({ facets: facets.filter((other) => other !== facet) });
  return [...search, ...facets.map((facet) => ({ name: filterName(facet), change: without(facet) }))];
}

function drawChips() {
  const chips = filters().map(({ name, change }) =>
    make(
      "li",
      {},
      button(
        name,
        () => undo(change),
        { class: "chip", "aria-label": `Remove the filter ${name}`, title: "Remove this filter" },
      ),
    ),
  );
  if (chips.length > 1) chips.push(
    make("li", {}, button("Remove all filters", () => undo({ text: "", facets: [] }), { class: "link" })),
  );
  find("chips").replaceChildren(...chips);
  find("chips").hidden = chips.length === 0;
}

function undo(change) {
  go({ ...change }, { focus: true });
}

function drawCount() {
  if (!query) return;
  const all = query.samples === about.samples;
  const total = several(about.samples, "sample");
  find("count").textContent = all ? total : `${count(query.samples)} of ${total}`;
  find("mark-all").textContent = all ? "Mark all" : `Mark all ${count(query.samples)}`;
  find("mark-all").disabled = query.samples === 0;
}

function drawEmpty() {
  const box = find("empty");
  box.hidden = query.samples > 0;
  if (query.samples) return;
  const active = filters();
  const last = active[active.length - 1];
  const text = about.samples ? "No sample matches." : "There are no samples.";
  box.replaceChildren(
    make("p", { class: "big", text }),
    ...(last ? [make("p", {}, button(`Remove the last filter: ${last.name}`, () => undo(last.change)))] : []),
    ...(active.length > 1 ? [make("p", {}, button("Show all samples", () => undo({ text: "", facets: [] })))] : []),
  );
}

async function drawFacets(signal) {
  const list = find("facets-list");
  if (!list.hasChildNodes()) list.append(make("p", { class: "soft", text: "Counting …" }));
  list.setAttribute("aria-busy", "true");
  try {
    const facets = await query.facets(signal);
    if (signal.aborted) return;
    const cards = facetCards(facets, {
      samples: query.samples,
      fields: new Map(about.fields.map((field) => [field.name, field.kind])),
      filters: state.facets,
      toggle,
    });
    replaceCards(list, cards.length ? cards : [make("p", { class: "soft", text: "There is nothing to count." })]);
  } catch (error) {
    if (error.name === "AbortError") return;
    list.replaceChildren(
      make("p", { class: "wrong", role: "alert", text: error.message }),
      button("Try again", () => drawFacets(signal)),
    );
  }
  list.removeAttribute("aria-busy");
}

function toggle(filter) {
  const others = state.facets.filter((other) => !sameFilter(filter, other));
  go({ facets: others.length < state.facets.length ? others : [...state.facets, filter] });
}

function sortBy(column) {
  if (!column) return go({ sort: null });
  if (state.sort?.column !== column) return go({ sort: { column, descending: false } });
  return go({ sort: { column, descending: !state.sort.descending } });
}

function showFilters(on) {
  document.body.classList.toggle("with-facets", on);
  find("facets-open").setAttribute("aria-expanded", String(on));
  if (on) find("facets").focus();
  else samples.go(samples.current);
}

// ---- one sample ----

async function open(index, options = {}) {
  if (!query || index < 0 || index >= query.samples) return;
  const asked = query;
  try {
    const row = await samples.rows.get(index);
    if (query !== asked) return;
    samples.go(index, { focus: false });
    go({ open: row.position, at: samples.current }, options);
  } catch (error) {
    samples.failed(error.message);
  }
}

// Show the sample of the state, and which one of the list it is, if the address says that rightly.
async function showLarge(next) {
  const row = samples.count ? await samples.rows.get(samples.current).catch(() => null) : null;
  if (state.open !== next.open) return;
  const isCurrent = row?.position === next.open;
  const number = isCurrent ? `${count(samples.current + 1)} of ${count(query.samples)}` : "";
  find("before").disabled = samples.current <= 0;
  find("after").disabled = samples.current >= samples.count - 1;
  find("large-mark").checked = choice.has(next.open);
  sample.show(next.open, isCurrent ? row.key : "", number);
}

function closeLarge() {
  closing = { at: samples.current }; // the step before has the place where it was opened
  if (history.state?.opened) history.back();
  else go({ open: null }, { replace: true });
}

// ---- marks ----

async function mark(index, extend) {
  const row = samples.rows.at(index);
  if (!row) return;
  try {
    if (extend && anchor !== null && anchor !== index) {
      await choice.setRows(query, Math.min(anchor, index), Math.max(anchor, index) + 1, true);
    } else choice.set(row.position, !choice.has(row.position));
    anchor = index;
  } catch (error) {
    samples.failed(error.message);
  }
}

async function markAll() {
  if (!query?.samples) return;
  try {
    await choice.setRows(query, 0, query.samples, true);
  } catch (error) {
    samples.failed(error.message);
  }
}

function drawMarks() {
  samples.drawMarks();
  if (sample.isOpen) find("large-mark").checked = choice.has(state.open);
}

// ---- keys ----

function pressInSample(event) {
  const { key, target } = event;
  if (target.matches("audio, video") && key !== "n" && key !== "p" && key !== "x") return false;
  const inZoom = target.closest(".zoom.larger") && key.startsWith("Arrow");
  if (inZoom || isTyping(target) && !target.matches("audio, video")) return false;
  const moves = { ArrowLeft: -1, ArrowRight: 1, n: 1, p: -1, PageDown: 1, PageUp: -1, h: -1, l: 1 };
  const zooms = { "+": "larger", "=": "larger", "-": "smaller", 0: "fit", 1: null };
  if (Object.hasOwn(moves, key)) open(samples.current + moves[key], { replace: true });
  else if (key === "x") choice.set(state.open, !choice.has(state.open));
  else if (key === " " && !target.matches("button, a, summary, input, audio, video")) return sample.play();
  else if (key === "Enter" && target === find("large-sample")) sample.zoom?.toggle();
  else if (key === "?") find("help").showModal();
  else if (sample.zoom && Object.hasOwn(zooms, key)) zooms[key] ? sample.zoom[zooms[key]]() : sample.zoom.set(1);
  else return false;
  return true;
}

const COMMANDS = {
  "/": () => find("text").select(),
  "?": () => find("help").showModal(),
  g: () => askNumber(),
  s: () => find("sort").focus(),
  f: () => showFilters(true),
  v: () => go({ view: state.view === "grid" ? "list" : "grid", at: samples.current }, { replace: true, focus: true }),
  x: () => mark(samples.current, false),
  X: () => mark(samples.current, true),
  a: () => markAll(),
  A: () => choice.clear(),
  c: () => (choice.count ? find("save-keys").focus() : (find("status").textContent = "No sample is marked")),
  Backspace: () => filters().length && undo(filters().at(-1).change),
  Enter: () => open(samples.current),
};

function press(event) {
  const { key, target } = event;
  if (event.ctrlKey || event.metaKey || event.altKey || !about) return;
  if (find("help").open || find("goto").open) return;
  let done = true;
  if (sample.isOpen) done = pressInSample(event);
  else if (key === "Escape") {
    if (document.body.classList.contains("with-facets")) showFilters(false);
    else samples.go(samples.current);
  } else if (isTyping(target)) done = false;
  else if ((key === "Enter" || key === " ") && target !== document.body) done = false;
  else if (samples.target(key) !== undefined && !target.closest(".command, .facets")) samples.go(samples.target(key));
  else if (Object.hasOwn(COMMANDS, key)) COMMANDS[key]();
  else done = false;
  if (done) event.preventDefault();
}

function askNumber() {
  if (!query?.samples) return;
  find("goto-label").textContent = `Number, 1 to ${count(query.samples)}, or a share such as 50%`;
  find("goto-number").value = "";
  find("goto").showModal();
}

function goToNumber() {
  const text = find("goto-number").value.replace(/[\s,_']/g, "");
  const share = /^(\d+(?:\.\d+)?)%$/.exec(text);
  const index = share ? Math.floor((Number(share[1]) / 100) * (query.samples - 1)) : Number(text) - 1;
  if (text && Number.isFinite(index)) samples.go(Math.max(0, Math.min(Math.round(index), query.samples - 1)));
}

// ---- start ----

function back() {
  const next = { ...fromHash(location.hash), ...closing };
  closing = null;
  history.replaceState(history.state, "", toHash(next));
  apply(next);
}

function listen() {
  document.addEventListener("keydown", press);
  window.addEventListener("popstate", back);
  find("search").addEventListener("submit", (event) => {
    event.preventDefault();
    go({ text: find("text").value.trim(), language: find("language").value }, { focus: true });
  });
  find("text").addEventListener("search", () => find("text").value === "" && state.text && go({ text: "" }));
  find("language").addEventListener("change", () => {
    find("text").placeholder = PLACEHOLDERS[find("language").value];
    drawNote();
  });
  find("sort").addEventListener("change", () => sortBy(find("sort").value));
  find("direction").addEventListener("click", () => sortBy(state.sort.column));
  find("view-grid").addEventListener("click", () => go({ view: "grid" }, { replace: true }));
  find("view-list").addEventListener("click", () => go({ view: "list" }, { replace: true }));
  find("mark-all").addEventListener("click", markAll);
  find("facets-open").addEventListener("click", () => showFilters(!document.body.classList.contains("with-facets")));
  find("facets-close").addEventListener("click", () => showFilters(false));
  find("before").addEventListener("click", () => open(samples.current - 1, { replace: true }));
  find("after").addEventListener("click", () => open(samples.current + 1, { replace: true }));
  find("close").addEventListener("click", closeLarge);
  find("large").addEventListener("cancel", (event) => {
    event.preventDefault();
    closeLarge();
  });
  find("large-mark").addEventListener("change", () => choice.set(state.open, find("large-mark").checked));
  find("help-open").addEventListener("click", COMMANDS["?"]);
  find("help-close").addEventListener("click", () => find("help").close());
  find("goto-cancel").addEventListener("click", () => find("goto").close());
  find("goto-form").addEventListener("submit", () => setTimeout(goToNumber)); // when the focus is back
  for (const dialog of dialogs.slice(1)) dialog.addEventListener(
    "click",
    (event) => event.target === dialog && dialog.close(),
  );
  find("banner-close").addEventListener("click", () => (find("banner").hidden = true));
  window.addEventListener("beforeunload", (event) => choice.isUnsaved && event.preventDefault());
  document.addEventListener("replaced", (event) => warn(event.detail));
  document.addEventListener("visibilitychange", () => document.hidden || check());
}

function warn(text) {
  find("banner-text").textContent = text;
  find("banner").hidden = false;
}

// Ask whether a shard was replaced while nobody looked.
async function check() {
  try {
    const { replaced } = await getJson("/api/about");
    if (replaced) warn(typeof replaced === "string" ? replaced : REPLACED);
  } catch {
    // a request that matters says so
  }
}

async function start() {
  fillHelp();
  try {
    about = await getJson("/api/about");
  } catch (error) {
    say(find("search-error"), error.message);
    return;
  }
  const title = about.title || about.inputs.join(" ");
  document.title = `${title} – tarshow`;
  find("title").textContent = title;
  find("totals").textContent = [
    several(about.samples, "sample"),
    about.inputs.length > 1 ? several(about.inputs.length, "input") : "",
  ].filter(Boolean).join(" · ");
  const columns = about.columns.map(({ name }) => make("option", { value: name, text: columnName(name) }));
  find("sort").replaceChildren(make("option", { value: "", text: "as in the shards" }), ...columns);
  choice = new Choice(about.samples, drawMarks);
  if (about.replaced) await check();
  listen();
  await apply(fromHash(location.hash), true);
}

start();
