#include "client/table.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "client/mem.h"
#include "client/units.h"

enum { GAP = 2, MIN_SHRUNK = 8 };
enum row_style { PLAIN, DIM, BOLD };

struct shc_table {
    const shc_column *columns;
    size_t ncols;
    char **cells; /* row after row */
    unsigned char *styles;
    size_t ncells;
};

shc_table *shc_table_create(const shc_column *columns, size_t n)
{
    shc_table *table = shc_calloc(1, sizeof *table);
    table->columns = columns;
    table->ncols = n;
    return table;
}

void shc_table_free(shc_table *table)
{
    if (!table)
        return;
    for (size_t i = 0; i < table->ncells; i++)
        free(table->cells[i]);
    free(table->cells);
    free(table->styles);
    free(table);
}

void shc_table_cell(shc_table *table, const char *fmt, ...)
{
    va_list ap;
    char *raw = NULL;
    shc_buf text = {0};

    va_start(ap, fmt);
    if (vasprintf(&raw, fmt, ap) < 0)
        raw = shc_strdup("");
    va_end(ap);
    shc_text_clean(&text, raw);
    free(raw);

    table->cells = shc_reallocarray(table->cells, table->ncells + 1, sizeof *table->cells);
    table->cells[table->ncells] = text.data ? text.data : shc_strdup("");
    if (table->ncells % table->ncols == 0) {
        const size_t row = table->ncells / table->ncols;
        table->styles = shc_reallocarray(table->styles, row + 1, 1);
        table->styles[row] = PLAIN;
    }
    table->ncells++;
}

static void set_style(shc_table *table, enum row_style style)
{
    if (table->ncells)
        table->styles[(table->ncells - 1) / table->ncols] = (unsigned char)style;
}

void shc_table_row_dim(shc_table *table)
{
    set_style(table, DIM);
}

void shc_table_row_bold(shc_table *table)
{
    set_style(table, BOLD);
}

/* Takes columns from the widest that may shrink until the line fits. */
static void shrink(const shc_table *table, size_t *widths, size_t total, size_t limit)
{
    while (total > limit) {
        size_t widest = table->ncols;
        for (size_t c = 0; c < table->ncols; c++)
            if (table->columns[c].flags & SHC_SHRINK && widths[c] > MIN_SHRUNK &&
                (widest == table->ncols || widths[c] > widths[widest]))
                widest = c;
        if (widest == table->ncols)
            return;
        widths[widest]--;
        total--;
    }
}

static void put_cell(const char *text, size_t width, int flags, int last, const shc_term *term,
                     shc_buf *out)
{
    const size_t have = shc_text_width(text);

    if (have > width) {
        const size_t dots = term->utf8 ? 1 : 2;
        size_t keep = width > dots ? width - dots : 0;
        const char *end = text;
        while (keep && *end) {
            end++;
            while (((unsigned char)*end & 0xC0) == 0x80)
                end++;
            keep--;
        }
        shc_buf_add(out, text, (size_t)(end - text));
        shc_buf_puts(out, term->utf8 ? "\xE2\x80\xA6" : "..");
        return;
    }
    if (flags & SHC_RIGHT)
        shc_buf_fill(out, ' ', width - have);
    shc_buf_puts(out, text);
    if (!(flags & SHC_RIGHT) && !last)
        shc_buf_fill(out, ' ', width - have);
}

static void end_line(shc_buf *out)
{
    while (out->len && out->data[out->len - 1] == ' ')
        out->data[--out->len] = '\0';
}

void shc_table_render(const shc_table *table, const shc_term *term, size_t indent, shc_buf *out)
{
    const size_t ncols = table->ncols, nrows = (table->ncells + ncols - 1) / ncols;
    size_t *widths = shc_calloc(ncols, sizeof *widths);
    size_t total = indent + GAP * (ncols - 1);
    int titles = 0;

    for (size_t c = 0; c < ncols; c++) {
        const char *title = table->columns[c].title;
        titles |= title != NULL;
        widths[c] = title ? shc_text_width(title) : 0;
        for (size_t i = c; i < table->ncells; i += ncols) {
            const size_t width = shc_text_width(table->cells[i]);
            if (width > widths[c])
                widths[c] = width;
        }
        total += widths[c];
    }
    if (term->width > 0)
        shrink(table, widths, total, (size_t)term->width);

    for (size_t row = titles ? 0 : 1; row <= nrows; row++) {
        const int style = row ? table->styles[row - 1] : BOLD;
        shc_buf_fill(out, ' ', indent);
        if (style != PLAIN)
            shc_buf_puts(out, style == BOLD ? shc_bold(term) : shc_dim(term));
        for (size_t c = 0; c < ncols; c++) {
            const size_t cell = row ? (row - 1) * ncols + c : 0;
            const char *title = table->columns[c].title ? table->columns[c].title : "";
            const char *text = !row ? title : cell < table->ncells ? table->cells[cell] : "";
            if (c)
                shc_buf_fill(out, ' ', GAP);
            put_cell(text, widths[c], table->columns[c].flags, c + 1 == ncols, term, out);
        }
        end_line(out);
        if (style != PLAIN)
            shc_buf_puts(out, shc_plain(term));
        shc_buf_puts(out, "\n");
    }
    free(widths);
}
