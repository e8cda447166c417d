// Requests to the server of this page. All errors are texts for a person.

const NO_ANSWER =
  "The server of this page does not answer. If tarshow has ended, start it again in the terminal " +
  "and open the address that it prints.";

export class ServerError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

async function ask(path, options) {
  let response;
  try {
    response = await fetch(path, { cache: "no-store", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError(NO_ANSWER, 0);
  }
  if (response.ok) return response;
  const error = new ServerError(await reason(response), response.status);
  if (error.status === 409) document.dispatchEvent(new CustomEvent("replaced", { detail: error.message }));
  throw error;
}

async function reason(response) {
  const text = await response.text().catch(() => "");
  try {
    const { error } = JSON.parse(text);
    if (typeof error === "string" && error) return error;
  } catch {
    // plain text
  }
  return text.trim().slice(0, 2000) || `The server answers with status ${response.status}.`;
}

export const address = (path, parameters) => `${path}?${new URLSearchParams(parameters)}`;
export const thumbnail = (position, field, side) => address("/api/thumbnail", { position, field, size: side });
export const payload = (position, field) => address("/api/payload", { position, field });

export async function getJson(path, parameters = {}, signal = undefined) {
  return (await ask(address(path, parameters), { signal })).json();
}

function post(path, body, signal = undefined) {
  const headers = { "Content-Type": "application/json" };
  return ask(path, { method: "POST", headers, body: JSON.stringify(body), signal });
}

export const postJson = async (path, body, signal = undefined) => (await post(path, body, signal)).json();

// Return the bytes of a download and the name that the server gives it.
export async function postForFile(path, body) {
  const response = await post(path, body);
  const [, name] = /filename="?([^";]+)/.exec(response.headers.get("Content-Disposition") || "") || [];
  return { blob: await response.blob(), name };
}

// Why pictures can't be shown, by address: they are not asked for again.
const reasons = new Map();
const MAX_REASONS = 10_000;

export const knownReason = (url) => reasons.get(url);

// Return why a picture can't be shown.
export async function whyNot(url) {
  try {
    await ask(url, {});
    return "this browser can't show it";
  } catch (error) {
    if (error.status === 404) reasons.set(url, error.message);
    if (reasons.size > MAX_REASONS) reasons.delete(reasons.keys().next().value);
    return error.message;
  }
}

// A query and its answer. The server holds a limited number of answers: `use` asks again if it has dropped this one.
export class Query {
  constructor(request, { query, samples, seconds }) {
    this.request = request;
    this.id = query;
    this.samples = samples;
    this.seconds = seconds;
  }

  static async run(request, signal) {
    return new Query(request, await postJson("/api/query", request, signal));
  }

  async use(call) {
    const id = this.id;
    try {
      return await call(id);
    } catch (error) {
      if (error.status !== 404) throw error;
      if (this.id === id) this.id = (await postJson("/api/query", this.request)).query;
      return call(this.id);
    }
  }

  rows(begin, end, signal) {
    return this.use(async (query) => (await getJson("/api/rows", { query, begin, end }, signal)).rows);
  }

  facets(signal) {
    return this.use(async (query) => (await getJson("/api/facets", { query }, signal)).facets);
  }

  // Return one bit for each sample of the data set: 1 for rows begin to end of this query.
  bitmap(begin, end) {
    return this.use(async (query) => {
      const response = await ask(address("/api/bitmap", { query, begin, end }), {});
      return new Uint8Array(await response.arrayBuffer());
    });
  }
}
