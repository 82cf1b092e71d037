// ---- Conversations ----
let chat = null;      // the one that is shown
let running = null;   // {chat, message, stop, view}: the reply that is being written
const fresh = () => ({id: crypto.randomUUID ? crypto.randomUUID() : String(Date.now()) + Math.random(), title: "", created: Date.now(), updated: Date.now(), messages: []});
function show(next) {
  chat = next;
  document.title = chat.title ? chat.title + " – Tandem" : "Tandem";
  list();
  draw(true);
  close_drawer();
  if (chat.messages.length === 0) $("input").focus();
}
function day(time) {
  const midnight = new Date().setHours(0, 0, 0, 0), days = Math.ceil((midnight - time) / 864e5);
  return days <= 0 ? "Today" : days === 1 ? "Yesterday" : days < 8 ? "Last 7 days" : "Earlier";
}
function list() {
  const root = $("chats");
  root.replaceChildren();
  let heading = "";
  for (const one of [...chats.values()].sort((a, b) => b.updated - a.updated)) {
    if (day(one.updated) !== heading) root.append(el("li", {class: "day"}, el("h2", {text: (heading = day(one.updated))})));
    const item = el("li", {class: one === chat ? "on" : ""});
    item.append(
      el("button", {class: "open", type: "button", text: one.title || "New chat", title: one.title, "aria-current": one === chat ? "true" : null, onclick: () => show(one)}),
      el("span", {class: "tools"}, button("edit", "Rename", () => rename(item, one)), button("bin", "Delete", () => remove(one))));
    root.append(item);
  }
}
function rename(item, one) {
  const input = el("input", {"aria-label": "Title", maxlength: "200"});
  input.value = one.title;
  const done = (keep) => { if (keep && input.value.trim()) { one.title = input.value.trim(); in_store("readwrite", (s) => s.put(one)); } list(); };
  input.addEventListener("keydown", (e) => { if (e.key === "Enter") done(true); if (e.key === "Escape") { e.stopPropagation(); done(false); } });
  input.addEventListener("blur", () => done(true), {once: true});
  item.replaceChildren(input);
  input.focus();
  input.select();
}
function remove(one) {
  if (running && running.chat === one) running.stop.abort();
  chats.delete(one.id);
  forget(one.id);
  if (one === chat) show(fresh()); else list();
  toast("Deleted", "Undo", () => { chats.set(one.id, one); in_store("readwrite", (s) => s.put(one)); show(one); });
}

