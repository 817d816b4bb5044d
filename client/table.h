/* Text tables: columns as wide as their widest cell, two blanks between, titles above. One thread.
 */
#ifndef SHD_CLIENT_TABLE_H
#define SHD_CLIENT_TABLE_H

#include "client/buf.h"
#include "client/term.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shc_table shc_table;

enum {
    SHC_LEFT = 0,
    SHC_RIGHT = 1,  /* align to the right */
    SHC_SHRINK = 2, /* may be cut with an ellipsis when the terminal is narrow */
};

typedef struct shc_column {
    const char *title; /* borrowed; NULL in every column: no title line */
    int flags;
} shc_column;

/* Borrows the columns for its life. */
shc_table *shc_table_create(const shc_column *columns, size_t n);
void shc_table_free(shc_table *table);
/* The next cell, from left to right, then on the next row. Control characters become '?'. */
void shc_table_cell(shc_table *table, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Makes the row of the latest cell dim, or bold. */
void shc_table_row_dim(shc_table *table);
void shc_table_row_bold(shc_table *table);
/* Appends the table, each line indented. No line is longer than the terminal is wide as far as the
 * columns that may shrink allow it. */
void shc_table_render(const shc_table *table, const shc_term *term, size_t indent, shc_buf *out);

#ifdef __cplusplus
}
#endif
#endif
