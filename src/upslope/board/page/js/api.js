// Talking to the server: every question goes through here, so that one place knows whether it is there.

/** The server said no, or something that is not an answer. `status` is 0 when it could not be reached; `body` is all it said. */
export class ApiError extends Error {
  constructor(status, message, body = null) {
    super(message);
    Object.assign(this, { status, body });
  }
}

/** Asks: `get("curves", {run: ["a", "b"], key: "reward"})`. A list is said once per item; null and undefined are left out. */
export function get(what, params = {}, signal = undefined) {
  return ask(address(what, params), { signal });
}

/** Tells the server to do something; only with --allow-control. */
export function post(what, body) {
  return ask(`/api/${what}`, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-Upslope": "board" },
    body: JSON.stringify(body),
  });
}

/** The address of a question, for an image. */
export function address(what, params = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    for (const item of Array.isArray(value) ? value : [value]) {
      if (item !== null && item !== undefined) query.append(name, String(item));
    }
  }
  return `/api/${what}${query.size ? `?${query}` : ""}`;
}

async function ask(url, options) {
  let answer;
  try {
    answer = await fetch(url, { credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The board's server does not answer.");
  }
  let body = null;
  try {
    body = await answer.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(answer.status, `The server's answer (${answer.status}) could not be read.`);
  }
  if (!answer.ok) throw new ApiError(answer.status, body?.error ?? `The server answered ${answer.status}.`, body);
  return body;
}
