// What is shown, as the part of the address behind "#": search, filters, sort, view, sample. The history has each.

export const LANGUAGES = ["words", "expression", "sql"];
export const NOTHING = { text: "", language: "words", facets: [], sort: null, view: "grid", at: 0, open: null };

export function toHash({ text, language, facets, sort, view, at, open }) {
  const parts = new URLSearchParams();
  if (text) parts.set("q", text);
  if (text && language !== "words") parts.set("lang", language);
  for (const facet of facets) parts.append("filter", JSON.stringify(facet));
  if (sort) parts.set("sort", (sort.descending ? "-" : "+") + sort.column);
  if (view !== "grid") parts.set("view", view);
  if (at) parts.set("at", at);
  if (open !== null) parts.set("open", open);
  return `#${parts}`;
}

// Read it back. What can't be read is left out: the address may come from anywhere.
export function fromHash(hash) {
  const parts = new URLSearchParams(hash.replace(/^#/, ""));
  const sort = parts.get("sort");
  return {
    text: parts.get("q") || "",
    language: LANGUAGES.includes(parts.get("lang")) ? parts.get("lang") : "words",
    facets: parts.getAll("filter").map(facetOf).filter(Boolean),
    sort: sort && sort.length > 1 ? { column: sort.slice(1), descending: sort[0] === "-" } : null,
    view: parts.get("view") === "list" ? "list" : "grid",
    at: wholeNumber(parts.get("at")) ?? 0,
    open: wholeNumber(parts.get("open")),
  };
}

function facetOf(text) {
  try {
    const facet = JSON.parse(text);
    return isFacet(facet) ? facet : null;
  } catch {
    return null;
  }
}

const isPlain = (value) => value === null || ["string", "number", "boolean"].includes(typeof value);

function isFacet(facet) {
  if (facet === null || typeof facet !== "object") return false;
  if (facet.broken === true || typeof facet.missing === "string") return true;
  if (typeof facet.column !== "string") return false;
  if ("value" in facet) return isPlain(facet.value);
  return typeof facet.from === "number" && typeof facet.to === "number";
}

const wholeNumber = (text) => (/^\d{1,15}$/.test(text || "") ? Number(text) : null);

// Return the body of /api/query.
export function request({ text, language, facets, sort }) {
  const search = language === "words" ? { words: text } : { where: text, language };
  return { ...(text.trim() ? search : {}), facets, sort: sort ? [sort] : [] };
}

export const sameQuery = (one, other) => JSON.stringify(request(one)) === JSON.stringify(request(other));
