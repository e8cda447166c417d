// Elements and text. All names and values are put in as text, never as markup: no innerHTML in this page.

export const find = (id) => document.getElementById(id);

// Make an element. Properties are attributes, but for `text` (its text) and `on` (event listeners by name).
// false, null and undefined leave an attribute out; true sets it without a value.
export function make(tag, { text, on, ...attributes } = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    node.setAttribute(name, value === true ? "" : value);
  }
  if (text !== undefined) node.textContent = text;
  for (const [name, listener] of Object.entries(on || {})) node.addEventListener(name, listener);
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export function button(text, listener, attributes = {}) {
  return make("button", { type: "button", text, on: { click: listener }, ...attributes });
}

// Show text in an element that is hidden while there is none.
export function say(node, text) {
  node.textContent = text || "";
  node.hidden = !text;
}

const whole = new Intl.NumberFormat("en");
const UNITS = ["B", "kB", "MB", "GB", "TB", "PB"];

export const count = (number) => whole.format(number);

export function several(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}

// Bytes in units of 1000: 812 B, 6.7 kB, 31 MB.
export function size(bytes) {
  let unit = 0;
  let value = bytes;
  while (value >= 999.5 && unit < UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit === 0 || value >= 99.5 ? Math.round(value) : value.toFixed(1)} ${UNITS[unit]}`;
}

// A number for a label, to four digits.
export function short(number) {
  if (Number.isInteger(number)) return Math.abs(number) < 1e15 ? count(number) : number.toExponential(3);
  return Number(number.toPrecision(4)).toString();
}

// A value of a column, as it is.
export function shown(value) {
  if (value === null || value === undefined) return "none";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

// Columns of a table that have names of ours.
const COLUMN_NAMES = {
  __key__: "key",
  __shard__: "shard",
  __size__: "size",
  __index__: "number in the shard",
  __begin__: "byte",
};

export const columnName = (name) => (Object.hasOwn(COLUMN_NAMES, name) ? COLUMN_NAMES[name] : name);
export const isBytes = (name) => name === "__size__" || /(^|[._])(size|bytes)(__)?$/.test(name);

export function columnValue(name, value) {
  return isBytes(name) && typeof value === "number" ? size(value) : shown(value);
}

export const fieldName = (name) => name || "-";
