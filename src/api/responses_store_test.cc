// Bounds, order of age, and who finds what.
#include "api/responses_store.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <random>

namespace tandem::api::responses_store_test {
namespace {

chat::Message said(const std::string& text) {
  chat::Message message;
  message.role = chat::Role::assistant;
  message.content.push_back({chat::Part::Kind::text, text, {}});
  return message;
}

StoredResponse response(int number, size_t bytes = 10, int64_t client = 1) {
  StoredResponse out;
  out.id = fmt::format("resp_{}", number);
  out.client = client;
  out.body = std::string(bytes, 'x');
  out.messages = {said(fmt::format("text {}", number))};
  out.items.emplace_back(fmt::format("msg_{}", number), said(fmt::format("item {}", number)));
  return out;
}

TEST(ResponseStore, FindsWhatIsTheClients) {
  ResponseStore store;
  store.put(response(1));
  ASSERT_TRUE(store.find("resp_1", 1));
  EXPECT_EQ(store.find("resp_1", 1)->messages[0].content[0].text, "text 1");
  EXPECT_EQ(store.find_item("msg_1", 1)->content[0].text, "item 1");
  EXPECT_FALSE(store.find("resp_1", 2));
  EXPECT_FALSE(store.find_item("msg_1", 2));
  EXPECT_FALSE(store.find("resp_2", 1));
  EXPECT_FALSE(store.erase("resp_1", 2));
  const auto kept = store.find("resp_1", 1);
  EXPECT_TRUE(store.erase("resp_1", 1));
  EXPECT_FALSE(store.erase("resp_1", 1));
  EXPECT_FALSE(store.find_item("msg_1", 1));
  EXPECT_EQ(kept->id, "resp_1");  // who has it keeps it
  EXPECT_EQ(store.bytes(), 0u);
}

TEST(ResponseStore, TheOldestMakeRoom) {
  ResponseStore few(3);
  for (int i = 0; i < 5; ++i) few.put(response(i));
  EXPECT_EQ(few.size(), 3u);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(few.find(fmt::format("resp_{}", i), 1) != nullptr, i >= 2) << i;

  ResponseStore small(100, 10'000);
  for (int i = 0; i < 5; ++i) small.put(response(i, 3000));
  EXPECT_LE(small.bytes(), 10'000u);
  EXPECT_FALSE(small.find("resp_0", 1));
  EXPECT_TRUE(small.find("resp_4", 1));
  small.put(response(9, 10'001));  // larger than everything: nobody has to leave
  EXPECT_FALSE(small.find("resp_9", 1));
  EXPECT_TRUE(small.find("resp_4", 1));
}

TEST(ResponseStore, BoundsHoldInAnyOrder) {
  ResponseStore store(20, 20'000);
  std::mt19937 random(7);
  for (int step = 0; step < 3000; ++step) {
    const int number = static_cast<int>(random() % 40);
    if (random() % 3 == 0) {
      store.erase(fmt::format("resp_{}", number), 1);
    } else {
      store.put(response(number, random() % 4000));
      EXPECT_TRUE(store.find(fmt::format("resp_{}", number), 1));
    }
    ASSERT_LE(store.size(), 20u);
    ASSERT_LE(store.bytes(), 20'000u);
  }
  for (int number = 0; number < 40; ++number) store.erase(fmt::format("resp_{}", number), 1);
  EXPECT_EQ(store.size(), 0u);
  EXPECT_EQ(store.bytes(), 0u);
}

}  // namespace
}  // namespace tandem::api::responses_store_test
