// Numbers and times as people read them.

/** Seconds as "42 s", "3 min", "2 h 05". */
export function duration(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  const hours = Math.floor(seconds / 3600);
  if (hours < 48) return `${hours} h ${String(Math.floor((seconds % 3600) / 60)).padStart(2, "0")}`;
  return `${Math.floor(hours / 24)} days`;
}

/** Bytes as "3.4 GiB". */
export function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) { count /= 1024; unit += 1; }
  return `${count >= 100 || unit === 0 ? Math.round(count) : count.toFixed(1)} ${units[unit]}`;
}

/** Milliseconds as "0.8 ms", "42 ms", "1.2 s"; "–" for none. */
export function milliseconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 10) return `${value.toFixed(1)} ms`;
  if (value < 1000) return `${Math.round(value)} ms`;
  return `${(value / 1000).toFixed(value < 10000 ? 1 : 0)} s`;
}

/** Seconds since 1970 as the time of day here. */
export function clockTime(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
}

/** The end of an id, which is what differs: "…7K3QXA". */
export function shortId(id) {
  return id.length > 12 ? `…${id.slice(-7)}` : id;
}

/** An event's kind as words. */
export function words(kind) {
  const text = kind.replaceAll("_", " ");
  return text[0].toUpperCase() + text.slice(1);
}

/** One input event of a step, in words. */
export function inputWords(event) {
  const buttons = { 1: "left", 2: "middle", 3: "right" };
  switch (event.type) {
    case "move": return `move to ${event.x}, ${event.y}`;
    case "down": return `press ${buttons[event.button]}`;
    case "up": return `release ${buttons[event.button]}`;
    case "key_down": return `hold ${event.key}`;
    case "key_up": return `let go ${event.key}`;
    case "text": return `type “${event.text}”`;
    case "scroll": return `scroll ${event.dx}, ${event.dy}`;
    case "wait": return `wait ${event.ms} ms`;
    default: return event.type;
  }
}

/** A step in one line: clicks and key strokes are put together. */
export function stepWords(events) {
  if (events.length === 0) return "look";
  const said = [];
  for (let i = 0; i < events.length; i += 1) {
    const [here, next] = [events[i], events[i + 1]];
    if (here.type === "down" && next?.type === "up" && here.button === next.button) {
      said.push(here.button === 1 ? "click" : here.button === 3 ? "right click" : "middle click");
      i += 1;
    } else if (here.type === "key_down" && next?.type === "key_up" && here.key === next.key) {
      said.push(`key ${here.key}`);
      i += 1;
    } else said.push(inputWords(here));
  }
  return said.length > 6 ? `${said.slice(0, 6).join(", ")}, …` : said.join(", ");
}
