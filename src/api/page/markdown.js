// ---- Model text: a subset of Markdown, as elements ----
const INLINE = /(?<!`)(`{1,3})(?!`)([^\n]+?)(?<!`)\1(?!`)|\*\*(?=\S)([^\n]+?)\*\*|__(?=\S)([^\n]+?)__|~~(?=\S)([^\n]+?)~~|\*(?=[^\s*])([^*\n]+?)\*|(?<![\w])_(?=\S)([^_\n]+?)_(?![\w])|\[([^\]\n]{1,500})\]\(([^)\s]{1,2000})\)|(https?:\/\/[^\s<>"')\]]+)/g;
function inline(parent, text) {
  if (text.length > 20000) return parent.append(text);
  let at = 0;
  for (const m of text.matchAll(INLINE)) {
    parent.append(text.slice(at, m.index));
    at = m.index + m[0].length;
    if (m[1]) parent.append(el("code", {text: m[2].trim() || m[2]}));
    else if (m[9] || m[10]) parent.append(link(m[8] || m[10], m[9] || m[10]));
    else {
      const node = el(m[3] || m[4] ? "strong" : m[5] ? "s" : "em");
      inline(node, m[3] || m[4] || m[5] || m[6] || m[7]);
      parent.append(node);
    }
  }
  parent.append(text.slice(at));
}
function link(text, address) {
  if (!/^(https?:|mailto:)/i.test(address)) return text;
  return el("a", {href: address, target: "_blank", rel: "noopener noreferrer nofollow", text});
}
const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)[^`]*$/, ITEM = /^( *)([-*+]|\d{1,9}[.)])\s+/, RULE = /^ {0,3}([-*_])( *\1){2,}\s*$/;
const TABLE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)+\|?\s*$/;
// [kind, source lines]: what one element is made of.
function blocks(text) {
  const lines = text.split("\n"), out = [];
  let i = 0;
  const starts = (line) => FENCE.test(line) || /^#{1,6}\s/.test(line) || /^ {0,3}>/.test(line) || ITEM.test(line) || RULE.test(line);
  while (i < lines.length) {
    const line = lines[i], begin = i;
    const fence = line.match(FENCE);
    if (!line.trim()) { i++; continue; }
    if (fence) {
      for (i++; i < lines.length && !(lines[i].trim().startsWith(fence[1]) && /^[`~\s]+$/.test(lines[i])); ) i++;
      out.push(["code", lines.slice(begin, i)]);
      i++;
    } else if (RULE.test(line)) { out.push(["rule", [line]]); i++; }
    else if (/^#{1,6}\s/.test(line)) { out.push(["head", [line]]); i++; }
    else if (/^ {0,3}>/.test(line)) {
      while (i < lines.length && /^ {0,3}>/.test(lines[i])) i++;
      out.push(["quote", lines.slice(begin, i)]);
    } else if (ITEM.test(line)) {
      for (i++; i < lines.length; i++) {
        const next = lines[i + 1] ?? "";
        if (!lines[i].trim() ? !(ITEM.test(next) || /^\s{2,}\S/.test(next)) : !ITEM.test(lines[i]) && !/^\s/.test(lines[i]) && (starts(lines[i]) || !lines[i - 1].trim())) break;
      }
      out.push(["list", lines.slice(begin, i)]);
    } else if (line.includes("|") && TABLE.test(lines[i + 1] ?? "")) {
      while (i < lines.length && lines[i].includes("|")) i++;
      out.push(["table", lines.slice(begin, i)]);
    } else {
      for (i++; i < lines.length && lines[i].trim() && !starts(lines[i]); ) i++;
      out.push(["text", lines.slice(begin, i)]);
    }
  }
  return out;
}
const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
function element([kind, lines], depth) {
  if (kind === "rule") return el("hr");
  if (kind === "code") {
    const code = lines.slice(1).join("\n"), name = lines[0].match(FENCE)[2];
    return el("div", {class: "block"}, el("div", {class: "bar"}, el("span", {text: name || "text"}), el("button", {type: "button", text: "Copy", onclick: () => copy(code)})), el("pre", {tabindex: "0"}, el("code", {text: code})));
  }
  if (kind === "head") {
    const [, marks, title] = lines[0].match(/^(#{1,6})\s+(.*?)\s*#*$/);
    const node = el("h" + Math.min(marks.length + 1, 4));
    inline(node, title);
    return node;
  }
  if (kind === "quote") {
    const node = el("blockquote");
    markdown(node, lines.map((line) => line.replace(/^ {0,3}> ?/, "")).join("\n"), depth + 1);
    return node;
  }
  if (kind === "list") {
    const [, indent, mark] = lines[0].match(ITEM), ordered = /\d/.test(mark);
    const list = el(ordered ? "ol" : "ul", {start: ordered && parseInt(mark, 10) !== 1 ? parseInt(mark, 10) : null});
    let item = [];
    const flush = () => {
      if (!item.length) return;
      const node = el("li"), text = item.join("\n"), parts = blocks(text);
      if (parts.length && parts[0][0] === "text") {
        lines_of(node, parts[0][1]);
        for (const part of parts.slice(1)) node.append(depth < 8 ? element(part, depth + 1) : part[1].join("\n"));
      } else markdown(node, text, depth + 1);
      list.append(node);
    };
    for (const line of lines) {
      const m = line.match(ITEM);
      if (m && m[1].length <= indent.length + 1) { flush(); item = [line.slice(m[0].length)]; }
      else item.push(line.replace(/^ {1,4}/, ""));
    }
    flush();
    return list;
  }
  if (kind === "table") {
    const row = (line, tag) => el("tr", {}, ...cells(line).map((text) => { const cell = el(tag); inline(cell, text); return cell; }));
    return el("div", {class: "scroll-x"}, el("table", {}, el("thead", {}, row(lines[0], "th")), el("tbody", {}, ...lines.slice(2).map((line) => row(line, "td")))));
  }
  const paragraph = el("p");
  lines_of(paragraph, lines);
  return paragraph;
}
function lines_of(parent, lines) {
  lines.forEach((line, i) => {
    if (i) parent.append(el("br"));
    inline(parent, line.trim());
  });
}
function markdown(parent, text, depth = 0) {
  if (depth > 8) return parent.append(text);
  for (const block of blocks(text)) parent.append(element(block, depth));
}
// Text that grows: only blocks that changed are made anew.
class Growing {
  constructor() { this.root = el("div", {class: "md"}); this.made = []; }
  set(text) {
    const now = blocks(text).map((block) => [block[0] + block[1].join("\n"), block]);
    let same = 0;
    while (same < now.length && same < this.made.length && now[same][0] === this.made[same]) same++;
    while (this.root.children.length > same) this.root.lastChild.remove();
    for (const [, block] of now.slice(same)) this.root.append(element(block, 0));
    this.made = now.map(([source]) => source);
  }
}

