#include "client/jsonout.h"

#include <jansson.h>

#include <cfloat>
#include <cmath>
#include <string>

#include "gtest/gtest.h"

static std::string number(double value)
{
    shc_json json{};
    shc_json_num(&json, nullptr, value);
    std::string out = shc_buf_str(&json.text);
    shc_json_fini(&json);
    return out;
}

TEST(JsonOut, DoublesAreShortAndExact)
{
    EXPECT_EQ(number(0.1), "0.1");
    EXPECT_EQ(number(3e-4), "0.0003");
    EXPECT_EQ(number(5), "5.0");
    EXPECT_EQ(number(1e300), "1e+300");
    for (double value : {1.0 / 3, 5.541263580322266, DBL_MAX, DBL_MIN, 5e-324, -0.0, 1e22, 2e15})
        EXPECT_EQ(strtod(number(value).c_str(), nullptr), value);
    EXPECT_EQ(number(NAN), "null");
    EXPECT_EQ(number(INFINITY), "null");
}

TEST(JsonOut, ReadsBack)
{
    shc_json json{};
    shc_json_open(&json, nullptr, '{');
    shc_json_str(&json, "text", "a\"b\\c\n\t\x01\x7f gr\xC3\xB6\xC3\x9F");
    shc_json_str(&json, "broken", "x\xFFy");
    shc_json_strn(&json, "nul", "a\0b", 3);
    shc_json_u64(&json, "u", 9007199254740993u);
    shc_json_i64(&json, "i", -5);
    shc_json_bool(&json, "yes", 1);
    shc_json_null(&json, "nothing");
    shc_json_open(&json, "list", '[');
    shc_json_u64(&json, nullptr, 1);
    shc_json_open(&json, nullptr, '{');
    shc_json_close(&json, '}');
    shc_json_u64(&json, nullptr, 2);
    shc_json_close(&json, ']');
    shc_json_close(&json, '}');

    const std::string text = shc_buf_str(&json.text);
    EXPECT_EQ(text.find('\n'), std::string::npos);
    json_error_t error;
    json_t *root = json_loads(text.c_str(), JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    ASSERT_NE(root, nullptr) << error.text << text;
    EXPECT_EQ(json_string_length(json_object_get(root, "nul")), 3u);
    EXPECT_STREQ(json_string_value(json_object_get(root, "text")),
                 "a\"b\\c\n\t\x01\x7f gr\xC3\xB6\xC3\x9F");
    EXPECT_STREQ(json_string_value(json_object_get(root, "broken")), "x\xEF\xBF\xBDy");
    EXPECT_EQ(json_integer_value(json_object_get(root, "u")), 9007199254740993);
    EXPECT_EQ(json_integer_value(json_object_get(root, "i")), -5);
    EXPECT_TRUE(json_is_true(json_object_get(root, "yes")));
    EXPECT_TRUE(json_is_null(json_object_get(root, "nothing")));
    EXPECT_EQ(json_array_size(json_object_get(root, "list")), 3u);
    json_decref(root);
    shc_json_fini(&json);
}
