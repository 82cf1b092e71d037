// Several choices in one answer (`n`, lists of prompts): each is a session of its own, and together they have one
// client.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "api/chat_reply.h"
#include "api/endpoint.h"
#include "text/tokenizer.h"

namespace tandem::api {

// What the dialects of one reply's choices share. Used on the io thread only, once made.
struct ChoiceTotals {
  // `tokenizer` must outlive this. `choices`: in all, `per_prompt` of them for each prompt, in this order.
  ChoiceTotals(const text::Tokenizer& tokenizer, int64_t choices, int64_t per_prompt);
  // A choice has ended. True: it was the last one. A prompt counts once, however many replies it has.
  bool add(const Usage& choice, int64_t index);

  const text::Tokenizer* tokenizer;
  std::string id;  // 32 hexadecimal digits
  int64_t created = 0;
  int64_t open, per_prompt;
  Usage usage;                               // of the choices that have ended
  std::vector<PromptReport> prompt_reports;  // if prompt_logprobs were asked for
};

// One responder for each of `choices` sessions. A stream is opened once, and closing it (the dialect of the last choice
// does, or that of one that failed) ends the others. Whole replies are collected: the last one is sent with all choices
// in their order, and an error at once, which ends the others too.
std::vector<std::shared_ptr<Responder>> split_responder(const std::shared_ptr<Responder>& responder, size_t choices);

}  // namespace tandem::api
