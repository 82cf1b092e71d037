// Which requests reach a handler, and what the others are answered.
#include "http/router.h"

#include "base/error.h"

namespace tandem::http::router_test {
namespace {

std::vector<api::Route> routes() {
  const api::Handler handler = [](api::HttpRequest, std::shared_ptr<api::Responder>) {};
  return {{"GET", "/health", true, handler},       {"POST", "/ping", true, handler},
          {"GET", "/ping", true, handler},         {"GET", "/v1/models", false, handler},
          {"GET", "/v1/models/*", false, handler}, {"POST", "/v1/chat/completions", false, handler}};
}

Router open_router() { return {routes(), KeyRing({}), true, "myhost"}; }
Router keyed_router() { return {routes(), KeyRing({"first", "second"}), false, "0.0.0.0"}; }

RequestHead head(const std::string& method, const std::string& target) {
  RequestHead head;
  head.method = method;
  head.target = target;
  head.host = "localhost:8012";
  return head;
}

std::string header(const api::Reply& reply, const std::string& name) {
  for (const auto& [key, value] : reply.headers) {
    if (key == name) return value;
  }
  return {};
}

int refusal(const Router& router, const RequestHead& request) {
  const Decision decision = router.decide(request);
  return decision.reply ? decision.reply->status : 0;
}

TEST(Router, FindsTheHandler) {
  const Router router = open_router();
  const auto found = [&](const std::string& method, const std::string& target) {
    const Decision decision = router.decide(head(method, target));
    EXPECT_FALSE(decision.reply) << target;
    return decision.route ? decision.route->path + " " + decision.path : std::string();
  };
  EXPECT_EQ(found("GET", "/health"), "/health /health");
  EXPECT_EQ(found("GET", "/v1/models/"), "/v1/models /v1/models");
  EXPECT_EQ(found("GET", "/v1/models?limit=5"), "/v1/models /v1/models");
  EXPECT_EQ(found("GET", "/v1/models/a%2Fb"), "/v1/models/* /v1/models/a/b");
  EXPECT_EQ(found("GET", "/v1/models/a/b/"), "/v1/models/* /v1/models/a/b");
  EXPECT_EQ(found("POST", "http://localhost:8012/v1/chat/completions"), "/v1/chat/completions /v1/chat/completions");
  EXPECT_EQ(router.decide(head("GET", "/v1/models?limit=5&after=a?b#part")).query, "limit=5&after=a?b");
  EXPECT_EQ(router.decide(head("GET", "/v1/models#part?limit=5")).query, "");
  EXPECT_EQ(router.decide(head("GET", "/v1/models?")).query, "");
  EXPECT_TRUE(router.decide(head("HEAD", "/health")).head_only);
  EXPECT_EQ(found("HEAD", "/v1/models"), "/v1/models /v1/models");
}

TEST(Router, UnknownPathsAndMethods) {
  const Router router = open_router();
  for (const auto* target : {"/", "/v1", "/V1/models", "/v1/model", "/v1/modelsx"}) {
    EXPECT_EQ(refusal(router, head("GET", target)), 404) << target;
  }
  for (const auto* target : {"", "health", "/%zz", "/a%00b", "*"}) {
    EXPECT_EQ(refusal(router, head("GET", target)), 400) << target;
  }
  const Decision wrong = router.decide(head("DELETE", "/ping"));
  EXPECT_EQ(wrong.reply->status, 405);
  EXPECT_EQ(header(*wrong.reply, "Allow"), "POST, GET, HEAD, OPTIONS");
  EXPECT_EQ(refusal(router, head("GET", "/v1/chat/completions")), 405);
  EXPECT_EQ(refusal(router, head("HEAD", "/v1/chat/completions")), 405);
  EXPECT_NE(wrong.reply->body.find("\"error\":{"), std::string::npos);
}

TEST(Router, RoutesMayWordTheirErrors) {
  const api::Handler handler = [](api::HttpRequest, std::shared_ptr<api::Responder>) {};
  const auto worded = [](const api::ApiError& error, const std::string& request_id) {
    api::Reply reply;
    reply.status = error.status();
    reply.body = request_id + ": " + error.what();
    return reply;
  };
  const Router router({{"POST", "/own", false, handler, false, worded}, {"POST", "/other", false, handler}},
                      KeyRing({"key"}), false, "0.0.0.0");
  RequestHead request = head("POST", "/own");
  request.request_id = "id";
  EXPECT_EQ(router.decide(request).reply->status, 401);
  EXPECT_EQ(router.decide(request).reply->body, "id: Missing or wrong API key.");
  request.api_key = "key";
  EXPECT_FALSE(router.decide(request).reply);
  request.method = "GET";
  EXPECT_EQ(router.decide(request).reply->body, "id: GET is not allowed on /own.");
  EXPECT_EQ(header(*router.decide(request).reply, "Allow"), "POST, OPTIONS");
  request.target = "/other";
  EXPECT_EQ(router.decide(request).reply->body.substr(0, 9), "{\"error\":");
}

TEST(Router, KeysInAllThreeFields) {
  const Router router = keyed_router();
  RequestHead request = head("GET", "/v1/models");
  const Decision missing = router.decide(request);
  EXPECT_EQ(missing.reply->status, 401);
  EXPECT_EQ(header(*missing.reply, "WWW-Authenticate"), "Bearer");
  EXPECT_NE(missing.reply->body.find("\"code\":\"invalid_api_key\""), std::string::npos);
  for (const auto* authorization : {"Bearer first", "bearer second", "BEARER  first "}) {
    request.authorization = authorization;
    EXPECT_EQ(refusal(router, request), 0) << authorization;
  }
  for (const auto* authorization : {"Bearer", "Bearer ", "Bearer third", "Bearer first2", "Basic first", "first"}) {
    request.authorization = authorization;
    EXPECT_EQ(refusal(router, request), 401) << authorization;
  }
  request.authorization = {};
  request.x_api_key = "second";
  EXPECT_EQ(refusal(router, request), 0);
  request.x_api_key = {};
  request.api_key = "first";
  EXPECT_EQ(refusal(router, request), 0);
}

TEST(Router, OpenRoutesNeedNoKeyAndTheOthersDoNotShowThemselves) {
  const Router router = keyed_router();
  EXPECT_EQ(refusal(router, head("GET", "/health")), 0);
  EXPECT_EQ(refusal(router, head("POST", "/ping")), 0);
  EXPECT_EQ(refusal(router, head("GET", "/no/such/path")), 401);
  EXPECT_EQ(refusal(router, head("GET", "/v1/chat/completions")), 401);
}

TEST(Router, EmptyKeysAreRefused) { EXPECT_THROW(KeyRing({"a", ""}), Error); }

TEST(Router, CompressedBodies) {
  RequestHead request = head("POST", "/v1/chat/completions");
  request.content_encoding = "gzip";
  EXPECT_EQ(refusal(open_router(), request), 415);
  request.content_encoding = "identity";
  EXPECT_EQ(refusal(open_router(), request), 0);
}

TEST(Router, LoopbackWithoutKeyAnswersToLoopbackNamesOnly) {
  const Router router = open_router();
  RequestHead request = head("GET", "/health");
  for (const auto* host :
       {"localhost", "LOCALHOST:1", "127.0.0.1:8012", "127.0.1.1:1", "[::1]", "[::1]:8012", "MyHost:8012"}) {
    request.host = host;
    EXPECT_EQ(refusal(router, request), 0) << host;
  }
  for (const auto* host :
       {"evil.example", "127.0.0.1.evil.example", "localhost.evil", "[::2]:1", "[::1", "[::1]x", "127.evil", ":80"}) {
    request.host = host;
    EXPECT_EQ(refusal(router, request), 403) << host;
  }
  request.host = "server.example";
  EXPECT_EQ(refusal(keyed_router(), request), 0);
}

TEST(Router, Preflight) {
  RequestHead request = head("OPTIONS", "/v1/chat/completions");
  request.requested_headers = "authorization, x-stainless-os";
  for (const Router& router : {open_router(), keyed_router()}) {
    const Decision decision = router.decide(request);
    ASSERT_TRUE(decision.reply);
    EXPECT_EQ(decision.reply->status, 204);
    EXPECT_EQ(header(*decision.reply, "Access-Control-Allow-Methods"), "GET, POST, DELETE, OPTIONS");
    EXPECT_EQ(header(*decision.reply, "Allow"), "POST, OPTIONS");  // of this path
    EXPECT_EQ(header(*decision.reply, "Access-Control-Allow-Headers"), "authorization, x-stainless-os");
    EXPECT_EQ(header(*decision.reply, "Access-Control-Max-Age"), "600");
    EXPECT_EQ(router.common_headers().at(0).second, "*");
  }
  // Beyond loopback and without a key no other page may use the server.
  const Router insecure(routes(), KeyRing({}), false, "0.0.0.0");
  EXPECT_EQ(header(*insecure.decide(request).reply, "Access-Control-Allow-Headers"), "");
  EXPECT_TRUE(insecure.common_headers().empty());
}

}  // namespace
}  // namespace tandem::http::router_test
