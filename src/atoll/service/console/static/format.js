// Numbers, times and texts as people read them.

const UNITS = ["B", "KB", "MB", "GB", "TB"];

export function bytes(count) {
  if (count === null || count === undefined) return "–";
  let unit = 0;
  while (count >= 1000 && unit < UNITS.length - 1) {
    count /= 1024;
    unit += 1;
  }
  return `${count >= 100 || unit === 0 ? Math.round(count) : count.toFixed(1)} ${UNITS[unit]}`;
}

export function number(count) {
  if (count === null || count === undefined) return "–";
  return Math.abs(count) >= 1e6
    ? `${(count / 1e6).toFixed(count >= 1e8 ? 0 : 1)} M`
    : Math.round(count).toLocaleString("en");
}

export function milliseconds(time) {
  if (time === null || time === undefined) return "–";
  if (time === 0) return "0 ms";
  if (time < 1) return `${time.toFixed(2)} ms`;
  if (time < 1000) return `${Math.round(time)} ms`;
  return seconds(time / 1000);
}

export function seconds(time) {
  if (time === null || time === undefined) return "–";
  if (time < 0.1) return milliseconds(time * 1000);
  if (time < 10) return `${time.toFixed(1)} s`;
  if (time < 60) return `${Math.round(time)} s`;
  if (time < 3600) return two(time, 60, "min", 1, "s");
  if (time < 86400) return two(time, 3600, "h", 60, "min");
  return two(time, 86400, "d", 3600, "h");
}

function two(time, large, name, small, rest) {
  const left = Math.floor((time % large) / small);
  return `${Math.floor(time / large)} ${name}${left ? ` ${left} ${rest}` : ""}`;
}

/** A time that is short: 5 s, 3 min, 2 h, 4 d. */
export function span(time) {
  if (time === null || time === undefined) return "–";
  time = Math.max(0, time);
  if (time < 60) return `${Math.round(time)} s`;
  if (time < 3600) return `${Math.round(time / 60)} min`;
  if (time < 86400) return `${Math.round(time / 3600)} h`;
  return `${Math.round(time / 86400)} d`;
}

/** Seconds since 1970, or an ISO text, as seconds; null if it is neither. */
export function instant(at) {
  if (typeof at === "number") return at;
  const parsed = typeof at === "string" ? Date.parse(at) / 1000 : NaN;
  return Number.isNaN(parsed) ? null : parsed;
}

export const ago = (at) =>
  instant(at) === null ? "–" : `${span(Date.now() / 1000 - instant(at))} ago`;
export const until = (at) =>
  instant(at) === null ? "never" : `in ${span(instant(at) - Date.now() / 1000)}`;
export const clock = (at) =>
  instant(at) === null ? "–" : new Date(instant(at) * 1000).toLocaleTimeString("en-GB");
export const date = (at) =>
  instant(at) === null
    ? "–"
    : new Date(instant(at) * 1000).toLocaleString("en-GB", {
        dateStyle: "medium",
        timeStyle: "short",
      });
export const percent = (share) =>
  share === null || share === undefined
    ? "–"
    : `${(100 * share).toFixed(share < 0.1 && share > 0 ? 1 : 0)} %`;
export const plural = (count, one, many = `${one}s`) =>
  `${number(count)} ${count === 1 ? one : many}`;

export function dollars(usd) {
  if (usd === null || usd === undefined) return "–";
  return usd === 0 ? "$0" : usd < 0.01 ? `$${usd.toFixed(5)}` : `$${usd.toFixed(usd < 1 ? 4 : 2)}`;
}

export const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
/** The visible part of an id: ses_3kX…9a */
export const short = (id) => (id && id.length > 14 ? `${id.slice(0, 9)}…` : (id ?? ""));
