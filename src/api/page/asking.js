// ---- Asking ----
function ask(text) {
  if (!chats.has(chat.id)) chats.set(chat.id, chat);
  chat.title = chat.title || text.trim().split("\n")[0].slice(0, 80);
  chat.messages.push({role: "user", content: text});
  draw(true);
  reply();
}
function again(i) {
  if (running) running.stop.abort();
  chat.messages.length = i;
  draw(true);
  reply();
}
function body_of(one) {
  const messages = settings.system.trim() ? [{role: "system", content: settings.system}] : [];
  for (const m of one.messages) {
    if (m.role !== "assistant") messages.push({role: m.role, content: m.content, ...(m.tool_call_id ? {tool_call_id: m.tool_call_id} : {})});
    else if (m.content || m.calls.length || m.reasoning) {
      messages.push({role: "assistant", content: m.content, ...(m.reasoning ? {reasoning_content: m.reasoning} : {}),
        ...(m.calls.length ? {tool_calls: m.calls.map((c) => ({id: c.id, type: "function", function: {name: c.name, arguments: c.arguments}}))} : {})});
    }
  }
  const body = {model: settings.model || undefined, messages, stream: true, stream_options: {include_usage: true, continuous_usage_stats: true}, ...settings.sampling};
  if (settings.effort) body.reasoning_effort = settings.effort;
  if (settings.tools.trim()) body.tools = JSON.parse(settings.tools);
  return body;
}
// Data of server-sent events, as they come.
async function* events(stream) {
  const reader = stream.getReader(), decoder = new TextDecoder();
  for (let rest = ""; ;) {
    const {done, value} = await reader.read();
    if (done) return;
    rest += decoder.decode(value, {stream: true});
    const lines = rest.split("\n");
    rest = lines.pop();
    for (const line of lines) if (line.startsWith("data: ")) yield line.slice(6);
  }
}
function take(message, data, begin) {
  if (data.error) throw new Error(data.error.message);
  const choice = data.choices && data.choices[0];
  if (choice) {
    const d = choice.delta || {};
    if (d.reasoning_content) message.reasoning += d.reasoning_content;
    if ((d.content || d.tool_calls) && message.reasoning && !message.thought_ms) message.thought_ms = performance.now() - begin;
    if (d.content) message.content += d.content;
    for (const part of d.tool_calls || []) {
      const call = (message.calls[part.index] ??= {id: "", name: "", arguments: ""});
      call.id ||= part.id || "";
      call.name += (part.function && part.function.name) || "";
      call.arguments += (part.function && part.function.arguments) || "";
    }
    if (choice.finish_reason) message.finish = choice.finish_reason;
  }
  if (data.usage) figures.usage(data.usage, message);
  if (data.metrics) figures.metrics(data.metrics, message);
}
async function reply() {
  const mine = chat, message = {role: "assistant", content: "", reasoning: "", calls: [], stats: {}};
  let body;
  try { body = body_of(mine); } catch { return settings_dialog("The list of tools is not JSON."); }
  mine.messages.push(message);
  const run = (running = {chat: mine, message, stop: new AbortController(), view: new ReplyView(message, mine.messages.length - 1)});
  log.append(run.view.root);
  $("hello").hidden = true;
  ready();
  list();
  figures.begin();
  say("The reply is being written.");
  let timer = 0;
  const refresh = () => {
    timer = 0;
    const down = at_end();
    run.view.update();
    if (down && mine === chat) to_end();
  };
  refresh();
  const begin = performance.now();
  try {
    const response = await fetch("v1/chat/completions", {method: "POST", headers: {...headers(), "Content-Type": "application/json"}, body: JSON.stringify(body), signal: run.stop.signal});
    if (!response.ok) {
      const problem = await response.json().catch(() => ({}));
      if (response.status === 401) settings_dialog("The server asks for an API key.");
      throw new Error((problem.error && problem.error.message) || "The server answered " + response.status + ".");
    }
    for await (const data of events(response.body)) {
      if (data === "[DONE]") break;
      take(message, JSON.parse(data), begin);
      timer ||= setTimeout(refresh, 40);
    }
    if (!message.finish) throw new Error("The reply was cut off.");
  } catch (error) {
    if (run.stop.signal.aborted) message.stopped = true;
    else message.error = error instanceof TypeError ? "The server cannot be reached." : error.message;
  }
  clearTimeout(timer);
  if (running === run) running = null;
  figures.end();
  // A regenerated or edited conversation has gone on without it.
  if (mine.messages.includes(message)) { if (chats.has(mine.id)) save(mine); }
  const down = at_end();
  if (mine === chat && mine.messages.includes(message)) { run.view.update(); if (down) to_end(); }
  ready();
  list();
  say(message.error || (message.stopped ? "Stopped." : "Reply: " + (message.content || message.calls.map((c) => "call of " + c.name).join(", ")).slice(0, 600)));
}

