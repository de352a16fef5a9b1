// What both halves of the console need.

export const at = id => document.getElementById(id);

/** An element with these children; text stays text. */
export function make(name, properties = {}, ...children) {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
}

/** A call of the console's own, with the operator's key if there is one. */
export function call(path, options = {}) {
  const key = sessionStorage.getItem('key');
  const headers = { ...options.headers, ...(key && { authorization: `Bearer ${key}` }) };
  return fetch(path, { ...options, headers });
}
