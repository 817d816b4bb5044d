#include "client/table.h"

#include <string>

#include "gtest/gtest.h"

static std::string render(const shc_table *table, shc_term term, size_t indent = 0)
{
    shc_buf buf{};
    shc_table_render(table, &term, indent, &buf);
    std::string out = shc_buf_str(&buf);
    shc_buf_fini(&buf);
    return out;
}

static const shc_column columns[] = {
    {"ID", SHC_LEFT}, {"NAME", SHC_SHRINK}, {"BYTES", SHC_RIGHT}, {"STATE", SHC_LEFT}};

class Table : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        table = shc_table_create(columns, 4);
        add("1", "first", "1.0 MiB", "running");
        add("12", "a-job-with-a-longish-name", "123.4 MiB", "done");
    }
    void TearDown() override
    {
        shc_table_free(table);
    }
    void add(const char *id, const char *name, const char *bytes, const char *state)
    {
        shc_table_cell(table, "%s", id);
        shc_table_cell(table, "%s", name);
        shc_table_cell(table, "%s", bytes);
        shc_table_cell(table, "%s", state);
    }
    shc_table *table;
};

TEST_F(Table, AlignsAndLeavesNoBlanksAtTheEnd)
{
    EXPECT_EQ(render(table, {}), "ID  NAME                           BYTES  STATE\n"
                                 "1   first                        1.0 MiB  running\n"
                                 "12  a-job-with-a-longish-name  123.4 MiB  done\n");
}

TEST_F(Table, ShrinksToTheTerminal)
{
    shc_term term{};
    term.width = 36;
    term.utf8 = 1;
    EXPECT_EQ(render(table, term), "ID  NAME              BYTES  STATE\n"
                                   "1   first           1.0 MiB  running\n"
                                   "12  a-job-with-\xE2\x80\xA6  123.4 MiB  done\n");
}

TEST_F(Table, NeverCutsWhatMayNotShrink)
{
    shc_term term{};
    term.width = 10;
    const std::string out = render(table, term);
    EXPECT_NE(out.find("123.4 MiB  done"), std::string::npos);
    EXPECT_NE(out.find("a-job-.."), std::string::npos);
}

TEST_F(Table, StylesRowsOnTerminalsOnly)
{
    shc_table_row_dim(table);
    EXPECT_EQ(render(table, {}).find('\033'), std::string::npos);
    shc_term term{};
    term.style = 1;
    const std::string out = render(table, term, 2);
    EXPECT_EQ(out.find("  \033[1mID"), 0u);
    EXPECT_NE(out.find("  \033[2m12"), std::string::npos);
    EXPECT_NE(out.find("done\033[0m\n"), std::string::npos);
}

TEST(TableShapes, EmptyHasTitles)
{
    shc_table *table = shc_table_create(columns, 4);
    EXPECT_EQ(render(table, {}), "ID  NAME  BYTES  STATE\n");
    shc_table_free(table);
}

TEST(TableShapes, NoTitlesNoLine)
{
    static const shc_column bare[] = {{nullptr, SHC_LEFT}, {nullptr, SHC_RIGHT}};
    shc_table *table = shc_table_create(bare, 2);
    shc_table_cell(table, "a\tb");
    shc_table_cell(table, "%d", 5);
    EXPECT_EQ(render(table, {}), "a?b  5\n");
    shc_table_free(table);
}
