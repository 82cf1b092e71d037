// ---- What the browser keeps ----
const stored = (name, fallback) => { try { return JSON.parse(localStorage.getItem("tandem." + name)) ?? fallback; } catch { return fallback; } };
const store = (name, value) => { try { localStorage.setItem("tandem." + name, JSON.stringify(value)); } catch { /* private window: this page only */ } };
let database = null;
const opened = new Promise((done) => {
  try {
    const request = indexedDB.open("tandem", 1);
    request.onupgradeneeded = () => request.result.createObjectStore("chats", {keyPath: "id"});
    request.onsuccess = () => { database = request.result; done(); };
    request.onerror = request.onblocked = () => done();
  } catch { done(); }
});
const chats = new Map();
const in_store = (mode, act) => new Promise((done) => {
  if (!database) return done();
  const request = act(database.transaction("chats", mode).objectStore("chats"));
  request.onsuccess = () => done(request.result);
  request.onerror = () => { toast("The browser's storage is full or closed"); done(); };
});
const save = (chat) => { chat.updated = Date.now(); return in_store("readwrite", (s) => s.put(chat)); };
const forget = (id) => in_store("readwrite", (s) => s.delete(id));

const NUMBERS = [
  ["temperature", "Temperature", 0, 2, 0.05], ["top_p", "Top p", 0.01, 1, 0.01], ["top_k", "Top k", 0, 1000, 1], ["min_p", "Min p", 0, 1, 0.01],
  ["max_tokens", "Most tokens", 1, 1048576, 1], ["seed", "Seed", 0, 9007199254740991, 1], ["repetition_penalty", "Repetition penalty", 0.1, 10, 0.05],
  ["presence_penalty", "Presence penalty", -2, 2, 0.1], ["frequency_penalty", "Frequency penalty", -2, 2, 0.1]];
const settings = {sampling: {}, system: "", tools: "", effort: "", model: "", ...stored("settings", {})};
let key = stored("key", "") || sessionStorage.getItem("tandem.key") || "";
const headers = () => (key ? {Authorization: "Bearer " + key} : {});

