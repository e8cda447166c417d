// One sample in the grid or in the list: a frame at once, and what is in it when its row is loaded.

import { knownReason, thumbnail, whyNot } from "./api.js";
import { button, columnName, columnValue, count, fieldName, isBytes, make, size } from "./dom.js";

const TILE_PIXELS = 384; // side of a thumbnail in the grid, for screens with two pixels a pixel
const LIST_PIXELS = 96;
const SMALL = 64; // pictures up to this side are drawn unsmoothed
const DRAWN = { picture: "", video: "video", sound: "sound", array: "array" }; // kinds with a thumbnail: their label
const VALUE_COLUMN_PIXELS = 120;
const NAMED = ["__key__", "__size__"]; // columns that the list has anyway
// Columns that rows have by other names.
const PARTS = { __key__: "key", __shard__: "shard", __begin__: "offset", __size__: "size" };

const valueOf = (row, name) => (Object.hasOwn(PARTS, name) ? row[PARTS[name]] : row.columns[name]);

export function frame(index, total) {
  const number = count(index + 1);
  return make(
    "li",
    { "data-index": index, "aria-posinset": index + 1, "aria-setsize": total },
    make(
      "button",
      { type: "button", class: "open", tabindex: -1, "aria-label": `Sample ${number}` },
      make("span", { class: "face" }, make("span", { class: "kind", text: number })),
    ),
    make(
      "label",
      { class: "mark" },
      make("input", { type: "checkbox", tabindex: -1, "aria-label": `Mark sample ${number}` }),
    ),
  );
}

// Return the columns that the list shows besides key, size and text: the one that it is sorted by, then those
// with facets.
export function listColumns(about, sort, width) {
  const room = Math.max(0, Math.floor((width - 660) / VALUE_COLUMN_PIXELS));
  const isTold = ({ name, facet }) => facet && !isBytes(name) && (name !== "__shard__" || about.inputs.length > 1);
  const told = about.columns.filter(isTold).map(({ name }) => name);
  const fields = new Set(about.fields.map(({ name }) => name)); // their values, such as classes, first
  const isField = (name) => fields.has(name);
  const names = [...(sort ? [sort.column] : []), ...told.filter(isField), ...told.filter((name) => !isField(name))];
  return [...new Set(names)].filter((name) => !NAMED.includes(name)).slice(0, room);
}

export function headings(node, isShown, columns, { sort, about, acts }) {
  node.hidden = !isShown;
  if (!isShown) return;
  const isNumber = (name) => about.columns.some((column) => column.name === name && column.type === "number");
  const heading = (name) => {
    const sorted = sort?.column === name;
    const arrow = sorted ? (sort.descending ? " ↓" : " ↑") : "";
    const order = sorted ? (sort.descending ? ", descending" : ", ascending") : "";
    const title = `Sort by ${columnName(name)}`;
    const kind = [sorted && "sorted", isNumber(name) && "number"].filter(Boolean).join(" ");
    return button(
      columnName(name) + arrow,
      () => acts.sort(name),
      { title, "aria-label": title + order, class: kind },
    );
  };
  const plain = (text, kind) => make("span", { text, class: kind });
  node.replaceChildren(
    plain("", "no-mark"),
    plain("no.", "number"),
    plain(""),
    ...[...NAMED, ...columns].map(heading),
    plain("text"),
  );
}

// Put a row into its frame.
export function fill(node, row, shape) {
  node.dataset.filled = "1";
  const open = node.querySelector(".open");
  open.removeAttribute("aria-label");
  open.replaceChildren(...(shape.list ? listRow(node, row, shape) : gridTile(row, shape)));
  node.querySelector("input").setAttribute("aria-label", `Mark ${row.key}`);
}

function gridTile(row, { sort, about }) {
  const isSorted = sort && !NAMED.includes(sort.column);
  const sorted = () => `${columnName(sort.column)} ${columnValue(sort.column, valueOf(row, sort.column))}`;
  const values = isSorted ? [sorted()] : classValues(row, about);
  return [
    face(row, TILE_PIXELS),
    keyOf(row.key),
    make("span", { class: "detail", text: [...values, size(row.size)].join(" · ") }),
  ];
}

function listRow(node, row, { columns }) {
  const cell = (text, kind) => make("span", { class: kind, text });
  const values = columns.map((name) => {
    const value = valueOf(row, name);
    return cell(
      value === null || value === undefined ? "" : columnValue(name, value),
      typeof value === "number" ? "value number" : "value",
    );
  });
  const number = cell(count(Number(node.dataset.index) + 1), "number");
  const text = row.text || row.fields.map((field) => fieldName(field.name)).join(" ");
  return [
    number,
    face(row, LIST_PIXELS),
    keyOf(row.key),
    cell(size(row.size), "number size"),
    ...values,
    cell(text, "text"),
  ];
}

// The first value of a column of classes, which is short.
function classValues(row, about) {
  const names = new Set(about.fields.map((field) => field.name));
  const column = about.columns.find(
    ({ name, facet }) => facet && names.has(name) && (row.columns[name] ?? "") !== "",
  );
  return column ? [String(row.columns[column.name]).slice(0, 60)] : [];
}

function keyOf(key) {
  const slash = key.lastIndexOf("/") + 1;
  return make(
    "span",
    { class: "key", title: key },
    make("span", { class: "folder", text: key.slice(0, slash) }),
    make("span", { class: "base", text: key.slice(slash) }),
  );
}

// The picture of a sample, or its text, or the names of its fields.
function face(row, side) {
  const node = make("span", { class: "face" });
  const { fields } = row;
  const drawn = fields.find(({ kind }) => kind === "picture") || fields.find(({ kind }) => Object.hasOwn(DRAWN, kind));
  const words = () => {
    const names = row.fields.map((field) => fieldName(field.name)).join(" ");
    return row.text ? make("span", { class: "words", text: row.text }) : make("span", { class: "kind", text: names });
  };
  if (!drawn) {
    node.append(words());
    return node;
  }
  const url = thumbnail(row.position, drawn.name, side);
  const failure = (why) => {
    if (drawn.kind !== "picture") return words();
    const reason = `${fieldName(drawn.name)}: ${why}`;
    return make("span", { class: "wrong", title: reason, text: side === LIST_PIXELS ? "broken" : reason });
  };
  if (knownReason(url)) {
    node.append(failure(knownReason(url)), badge(drawn));
    return node;
  }
  const image = make("img", { alt: `${fieldName(drawn.name)} of ${row.key}`, decoding: "async", class: drawn.kind });
  image.addEventListener("load", () => {
    image.classList.toggle("tiny", image.naturalWidth <= SMALL && image.naturalHeight <= SMALL);
    image.classList.add("loaded");
  });
  image.addEventListener("error", async () => {
    if (!image.getAttribute("src")) return; // taken away before it came
    image.replaceWith(failure(await whyNot(url)));
  });
  image.src = url;
  node.append(image, badge(drawn));
  return node;
}

const badge = ({ kind }) => (DRAWN[kind] ? make("span", { class: "badge", text: DRAWN[kind] }) : "");
