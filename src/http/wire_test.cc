// Bytes of responses, and what percent-decoding refuses.
#include "http/wire.h"

namespace tandem::http::wire_test {
namespace {

TEST(Wire, ResponseHead) {
  EXPECT_EQ(response_head(200, {{"A", "b"}, {"C", "d e"}}), "HTTP/1.1 200 OK\r\nA: b\r\nC: d e\r\n\r\n");
  EXPECT_EQ(response_head(100, {}), "HTTP/1.1 100 Continue\r\n\r\n");
}

TEST(Wire, NoValueCanBeginAField) {
  EXPECT_EQ(response_head(404, {{"A", "x\r\nB: y"}}), "HTTP/1.1 404 Not Found\r\nA: x  B: y\r\n\r\n");
}

TEST(Wire, ChunksAndEvents) {
  EXPECT_EQ(chunk(std::string(26, 'x')), "1a\r\n" + std::string(26, 'x') + "\r\n");
  EXPECT_EQ(sse_event("{}"), "data: {}\n\n");
  EXPECT_EQ(sse_event("ping", "{}"), "event: ping\ndata: {}\n\n");
  EXPECT_EQ(sse_keepalive.substr(0, 1), ":");
}

TEST(Wire, Date) {
  EXPECT_EQ(http_date(784111777), "Sun, 06 Nov 1994 08:49:37 GMT");  // the example of RFC 9110, 5.6.7
  EXPECT_EQ(http_date(0), "Thu, 01 Jan 1970 00:00:00 GMT");
}

TEST(Wire, PercentDecoding) {
  EXPECT_EQ(percent_decode("/v1/models/a%2Fb%20c"), "/v1/models/a/b c");
  EXPECT_EQ(percent_decode("%c3%A9"), "\xc3\xa9");
  for (const auto* bad : {"%", "%1", "%g0", "%0g", "a%"}) EXPECT_EQ(percent_decode(bad), std::nullopt) << bad;
}

}  // namespace
}  // namespace tandem::http::wire_test
