// The page's outer form; tests/server/test_page.py uses it in a browser.
#include "api/page.h"

#include <regex>

#include "api/embedded.h"
#include "api/service_fixture.h"

namespace tandem::api::page_test {
namespace {

class Page : public ServiceTest {};

TEST_F(Page, IsServedWithoutAKeyAndBeforeTheModelIsThere) {
  Setup setup;
  setup.service.set_model(nullptr);
  for (const Route& route : setup.service.routes()) {
    EXPECT_TRUE(route.path != "/" || route.open);
  }
  const auto responder = setup.call("GET", "/");
  ASSERT_EQ(responder->replies.size(), 1u);
  const Reply& reply = responder->replies[0];
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.content_type, "text/html; charset=utf-8");
  EXPECT_TRUE(reply.body.starts_with("<!DOCTYPE html>"));
  EXPECT_TRUE(reply.body.ends_with("</html>\n"));
  EXPECT_LE(reply.body.size(), 60u * 1024);
}

// SHA-256 of "abc", FIPS 180-2, in base64; of the empty text for the style.
TEST(PagePolicy, NamesScriptAndStyleByTheirDigests) {
  const std::string policy = content_policy("<style></style><body><script>abc</script>");
  EXPECT_NE(policy.find("script-src 'sha256-ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0='"), std::string::npos)
      << policy;
  EXPECT_NE(policy.find("style-src 'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"), std::string::npos)
      << policy;
  EXPECT_EQ(policy.find("unsafe"), std::string::npos);
  EXPECT_THROW(content_policy("<style></style>"), Error);
}

TEST(PageText, TakesNothingFromElsewhereAndPutsNoTextInAsMarkup) {
  const std::string html(embedded_file("page/index.html"));
  ASSERT_FALSE(html.empty());
  EXPECT_FALSE(std::regex_search(html, std::regex(R"re((src|srcset|action)="|@import|url\()re")));
  for (const auto* word : {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function",
                           " style=\"", " onclick=\"", "setAttribute(\"style"}) {
    EXPECT_EQ(html.find(word), std::string::npos) << word;
  }
  // Addresses in it are names of XML, or patterns that text is compared with.
  static const std::regex address(R"(https?://[a-z0-9][a-z0-9.-]*)");
  for (auto it = std::sregex_iterator(html.begin(), html.end(), address); it != std::sregex_iterator(); ++it) {
    EXPECT_EQ(it->str(), "http://www.w3.org");
  }
}

TEST(EmbeddedFiles, UnknownNamesAreEmpty) { EXPECT_TRUE(embedded_file("page/other.html").empty()); }

}  // namespace
}  // namespace tandem::api::page_test
