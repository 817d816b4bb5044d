/* Added tokens; see added.h. Floor F3. */
#include "daemon/data/added.h"

#include <stdlib.h>
#include <string.h>
#include <unictype.h>

#include "daemon/base/mem.h"
#include "daemon/data/utf8.h"

#define A_LOOK (1u << 18) /* bytes of names between two looks at whether to go on */
#define NAMES_A_LOOK 64u

/* A trie of the names' bytes: the children of a node are a list. */
typedef struct node {
    uint32_t child, sibling; /* 0: none */
    int32_t token;           /* index, -1: no name ends here */
    unsigned char byte;
} node;

struct shd_added {
    node *nodes; /* nodes[0] is the root */
    uint32_t n_nodes;
    shd_added_token *tokens;
    size_t n_tokens;
    size_t longest;      /* name, bytes */
    uint32_t first[256]; /* the root's children by byte */
};

shd_added *shd_added_create(void)
{
    shd_added *added = shd_calloc(1, sizeof(*added));
    added->nodes = shd_calloc(1, sizeof(*added->nodes));
    added->nodes[0].token = -1;
    added->n_nodes = 1;
    return added;
}

void shd_added_free(shd_added *added)
{
    if (added != NULL) {
        free(added->nodes);
        free(added->tokens);
        free(added);
    }
}

int shd_added_empty(const shd_added *added)
{
    return added->n_tokens == 0;
}

static uint32_t child_of(const shd_added *added, uint32_t at, unsigned char byte)
{
    uint32_t child = added->nodes[at].child;
    while (child != 0 && added->nodes[child].byte != byte) {
        child = added->nodes[child].sibling;
    }
    return child;
}

void shd_added_put(shd_added *added, const char *name, size_t n, const shd_added_token *token)
{
    uint32_t at = 0;
    for (size_t i = 0; i < n; i++) {
        const unsigned char byte = (unsigned char)name[i];
        uint32_t next = child_of(added, at, byte);
        if (next == 0) {
            if ((added->n_nodes & (added->n_nodes - 1)) == 0) {
                added->nodes =
                    shd_reallocarray(added->nodes, 2 * (size_t)added->n_nodes, sizeof(node));
            }
            next = added->n_nodes++;
            added->nodes[next] =
                (node){.sibling = added->nodes[at].child, .token = -1, .byte = byte};
            added->nodes[at].child = next;
        }
        at = next;
    }
    added->first[(unsigned char)name[0]] = child_of(added, 0, (unsigned char)name[0]);
    if (added->nodes[at].token < 0) {
        added->tokens =
            shd_reallocarray(added->tokens, added->n_tokens + 1, sizeof(*added->tokens));
        added->nodes[at].token = (int32_t)added->n_tokens++;
    }
    added->tokens[added->nodes[at].token] = *token;
    added->longest = n > added->longest ? n : added->longest;
}

/* The longest name that text[n] begins with; NULL: none. *size gets its bytes. */
static const shd_added_token *longest_at(const shd_added *added, const char *text, size_t n,
                                         size_t *size)
{
    const shd_added_token *found = NULL;
    uint32_t at = n > 0 ? added->first[(unsigned char)text[0]] : 0;
    for (size_t i = 1; at != 0; i++) {
        if (added->nodes[at].token >= 0) {
            found = &added->tokens[added->nodes[at].token];
            *size = i;
        }
        at = i < n ? child_of(added, at, (unsigned char)text[i]) : 0;
    }
    return found;
}

/* What \w means to the regex crate: UTS 18, annex C. */
static int is_word(uint32_t c)
{
    return uc_is_property_alphabetic(c) || uc_is_property_join_control(c) ||
           uc_is_general_category_withtable(c, UC_CATEGORY_MASK_M | UC_CATEGORY_MASK_Nd |
                                                   UC_CATEGORY_MASK_Pc);
}

static int stands_alone(const char *text, size_t n, size_t begin, size_t end)
{
    size_t size;
    return !(begin > 0 && is_word(shd_utf8_last(text, begin, &size))) &&
           !(end < n && is_word(shd_utf8_get(text + end, &size)));
}

/* Not beyond `least`. */
static size_t skip_space_back(const char *text, size_t at, size_t least)
{
    size_t size;
    while (at > least && uc_is_property_white_space(shd_utf8_last(text, at, &size))) {
        at -= size;
    }
    return at;
}

static size_t skip_space(const char *text, size_t n, size_t at)
{
    size_t size;
    while (at < n && uc_is_property_white_space(shd_utf8_get(text + at, &size))) {
        at += size;
    }
    return at;
}

/* The first place from `at` on where a name begins, n: none; *token and *size get the name. Looks
 * at `ends` after so many bytes of names. */
static int find(const shd_added *added, const char *text, size_t n, shd_ends *ends, size_t *at,
                const shd_added_token **token, size_t *size, shd_error *err)
{
    size_t work = 0;
    *token = NULL;
    for (; *at < n; (*at)++) {
        if (added->first[(unsigned char)text[*at]] == 0) {
            continue;
        }
        *token = longest_at(added, text + *at, n - *at, size);
        if (*token != NULL) {
            break;
        }
        work += added->longest;
        if (work > A_LOOK) {
            SHD_TRY(shd_ends_look(ends, 1, err));
            work = 0;
        }
    }
    return 0;
}

int shd_added_split(const shd_added *added, const char *text, size_t n, shd_ends *ends,
                    shd_added_fn fn, void *arg, shd_error *err)
{
    size_t done = 0;   /* text[0, done) has been given away */
    size_t spaces = 0; /* white space that was skipped ends here: no need to go over it again */
    for (size_t at = 0; at < n && added->n_tokens > 0;) {
        size_t size = 0;
        const shd_added_token *token;
        SHD_TRY(find(added, text, n, ends, &at, &token, &size, err));
        if (token == NULL) {
            break;
        }
        SHD_TRY(shd_ends_look(ends, NAMES_A_LOOK, err));
        size_t begin = at, end = at + size;
        at = end; /* the search goes on here, even when the token is not taken or takes more */
        if (token->single_word && !stands_alone(text, n, begin, end)) {
            continue;
        }
        if (token->lstrip && begin > done) {
            begin = skip_space_back(text, begin, done);
        } else if (token->lstrip) {
            begin = done;
        }
        if (token->rstrip) {
            spaces = end < spaces ? spaces : skip_space(text, n, end);
            end = spaces;
        }
        int rc = done < begin ? fn(arg, -1, text + done, begin - done) : 0;
        rc = rc == 0 ? fn(arg, token->id, text + begin, end - begin) : rc;
        if (rc != 0) {
            return rc;
        }
        done = end;
    }
    return done < n ? fn(arg, -1, text + done, n - done) : 0;
}

int shd_added_near(const shd_added *added, const char *text, size_t n, size_t at)
{
    for (size_t s = at > added->longest ? at - added->longest : 0; s <= at && s < n; s++) {
        size_t size = 0;
        if (longest_at(added, text + s, n - s, &size) != NULL && s + size + 1 >= at) {
            return 1;
        }
    }
    return 0;
}
