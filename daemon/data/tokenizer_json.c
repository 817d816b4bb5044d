/* Reading tokenizer.json and tokenizer_config.json: everything in tokenizer.json that could change
 * ids is either honoured or refused by its name. Floor F3. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/mem.h"
#include "daemon/data/tokenizer_internal.h"
#include "daemon/data/utf8.h"

/* How GPT-2 cuts a text (Radford et al. 2019); what ByteLevel does with use_regex. */
#define GPT2_PATTERN                                                                               \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

#define MAX_ADDED_BYTES 1024u /* of an added token's name */

#define SPARE_IDS 4096 /* that a vocabulary may leave out, besides as many as it has */

typedef struct reader {
    shd_tokenizer *tok;
    json_t *vocab; /* of the model: name to id */
    shd_error *err;
    uint32_t depth;       /* of sequences */
    int ends_in_bytes;    /* the last stage was ByteLevel */
    int16_t byte_of[512]; /* by character, -1: stands for no byte */
} reader;

/* ---- JSON ---- */

static json_t *load(const char *bytes, size_t n, size_t flags, shd_error *err)
{
    json_error_t at;
    json_t *root = json_loadb(bytes, n, flags | JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &at);
    if (root == NULL) {
        shd_fail(err, SHD_EDATA, "not JSON: %s, line %d, column %d", at.text, at.line, at.column);
    }
    return root;
}

static int is_one_of(const char *word, const char *const *list)
{
    for (; *list != NULL; list++) {
        if (strcmp(word, *list) == 0) {
            return 1;
        }
    }
    return 0;
}

/* Every key of the object must be known: an unknown one may change ids. */
static int check_keys(const reader *r, json_t *object, const char *what, const char *const *known)
{
    const char *key;
    json_t *value;
    if (!json_is_object(object)) {
        return shd_fail(r->err, SHD_EDATA, "%s is not an object", what);
    }
    json_object_foreach(object, key, value)
    {
        if (!is_one_of(key, known)) {
            return shd_fail(r->err, SHD_EUNSUPPORTED, "%s has a key '%.100s' that is not supported",
                            what, key);
        }
    }
    return 0;
}

static const char *type_of(json_t *object)
{
    const char *type = json_string_value(json_object_get(object, "type"));
    return type != NULL ? type : "";
}

static int is_set(json_t *value)
{
    return value != NULL && !json_is_null(value);
}

static int read_bool(const reader *r, json_t *object, const char *what, const char *key,
                     int otherwise, int *out)
{
    json_t *value = json_object_get(object, key);
    *out = value != NULL ? json_is_true(value) : otherwise;
    return value == NULL || json_is_boolean(value)
               ? 0
               : shd_fail(r->err, SHD_EDATA, "%s: '%s' is neither true nor false", what, key);
}

/* ---- bytes as characters (GPT-2's bytes_to_unicode) ---- */

static void fill_byte_of(reader *r)
{
    int next = 256;
    memset(r->byte_of, -1, sizeof(r->byte_of));
    for (int b = 0; b < 256; b++) {
        const int shown = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        r->byte_of[shown ? b : next++] = (int16_t)b;
    }
}

/* The bytes that a name stands for, in out[strlen(name)]; SIZE_MAX: it has other characters. */
static size_t bytes_of(const reader *r, const char *name, size_t n, char *out)
{
    size_t size = 0;
    for (size_t at = 0, step; at < n; at += step) {
        const uint32_t c = shd_utf8_get(name + at, &step);
        if (c >= 512 || r->byte_of[c] < 0) {
            return SIZE_MAX;
        }
        out[size++] = (char)r->byte_of[c];
    }
    return size;
}

/* ---- normalizer ---- */

static int read_normalizer(reader *r, json_t *object)
{
    static const char *const keys[] = {"type", "normalizers", NULL};
    const char *type = type_of(object);
    shd_tokenizer *tok = r->tok;
    SHD_TRY(check_keys(r, object, "normalizer", keys));
    if (strcmp(type, "Sequence") == 0) {
        json_t *list = json_object_get(object, "normalizers"), *item;
        size_t i;
        if (!json_is_array(list) || ++r->depth > SHD_MAX_STAGES) {
            return shd_fail(r->err, SHD_EDATA, "normalizer: 'normalizers' is not a list");
        }
        json_array_foreach(list, i, item)
        {
            SHD_TRY(read_normalizer(r, item));
        }
        return 0;
    }
    const uninorm_t form = strcmp(type, "NFC") == 0    ? UNINORM_NFC
                           : strcmp(type, "NFD") == 0  ? UNINORM_NFD
                           : strcmp(type, "NFKC") == 0 ? UNINORM_NFKC
                           : strcmp(type, "NFKD") == 0 ? UNINORM_NFKD
                                                       : NULL;
    if (form == NULL || tok->n_forms == SHD_MAX_NORMAL_FORMS) {
        return shd_fail(r->err, SHD_EUNSUPPORTED,
                        "normalizer '%.60s' is not supported; NFC, NFD, NFKC, NFKD are, up to %d",
                        type, SHD_MAX_NORMAL_FORMS);
    }
    tok->forms[tok->n_forms++] = form;
    return 0;
}

/* ---- pre_tokenizer ---- */

static int add_stage(reader *r, shd_stage stage)
{
    if (r->tok->n_stages == SHD_MAX_STAGES) {
        shd_regex_free(stage.regex);
        return shd_fail(r->err, SHD_EUNSUPPORTED, "pre_tokenizer: more than %d steps",
                        SHD_MAX_STAGES);
    }
    r->tok->stages[r->tok->n_stages++] = stage;
    return 0;
}

static int add_pattern(reader *r, const char *pattern)
{
    shd_stage stage = {0};
    SHD_TRY(shd_regex_compile(pattern, &stage.regex, r->err));
    return add_stage(r, stage);
}

static int read_byte_level(reader *r, json_t *object)
{
    static const char *const keys[] = {"type", "add_prefix_space", "trim_offsets", "use_regex",
                                       NULL};
    int space = 0, cut = 0;
    SHD_TRY(check_keys(r, object, "ByteLevel", keys));
    SHD_TRY(read_bool(r, object, "ByteLevel", "add_prefix_space", 1, &space));
    SHD_TRY(read_bool(r, object, "ByteLevel", "use_regex", 1, &cut));
    if (space) {
        SHD_TRY(add_stage(r, (shd_stage){0}));
    }
    if (cut) {
        SHD_TRY(add_pattern(r, GPT2_PATTERN));
    }
    r->ends_in_bytes = 1;
    return 0;
}

static int read_digits(reader *r, json_t *object)
{
    static const char *const keys[] = {"type", "individual_digits", NULL};
    int each = 0;
    SHD_TRY(check_keys(r, object, "Digits", keys));
    SHD_TRY(read_bool(r, object, "Digits", "individual_digits", 0, &each));
    return add_pattern(r, each ? "\\p{N}" : "\\p{N}+");
}

static int read_split(reader *r, json_t *object)
{
    static const char *const keys[] = {"type", "pattern", "behavior", "invert", NULL};
    static const char *const kinds[] = {"Regex", "String", NULL};
    int invert = 0;
    shd_stage stage = {0};
    SHD_TRY(check_keys(r, object, "Split", keys));
    SHD_TRY(read_bool(r, object, "Split", "invert", 0, &invert));
    json_t *pattern = json_object_get(object, "pattern");
    SHD_TRY(check_keys(r, pattern, "Split's pattern", kinds));
    json_t *text = json_object_get(pattern, "Regex");
    const int regex = text != NULL;
    text = regex ? text : json_object_get(pattern, "String");
    const char *string = json_string_value(text);
    const size_t n = json_string_length(text);
    if (string == NULL || n == 0 || json_object_size(pattern) != 1 ||
        (regex && strlen(string) != n)) {
        return shd_fail(r->err, SHD_EDATA, "Split: its pattern is not one Regex or String");
    }
    const char *behavior = json_string_value(json_object_get(object, "behavior"));
    if (behavior != NULL && strcmp(behavior, "Removed") == 0) {
        stage.drop_matches = !invert;
        stage.drop_rest = invert;
    } else if (behavior == NULL || strcmp(behavior, "Isolated") != 0) {
        return shd_fail(r->err, SHD_EUNSUPPORTED,
                        "Split: behavior '%.60s' is not supported; Isolated and Removed are",
                        behavior != NULL ? behavior : "");
    }
    SHD_TRY(regex ? shd_regex_compile(string, &stage.regex, r->err)
                  : shd_regex_literal(string, n, &stage.regex, r->err));
    return add_stage(r, stage);
}

static int read_pre_tokenizer(reader *r, json_t *object)
{
    static const char *const keys[] = {"type", "pretokenizers", NULL};
    const char *type = type_of(object);
    if (r->ends_in_bytes) {
        return shd_fail(r->err, SHD_EUNSUPPORTED, "pre_tokenizer: '%.60s' after ByteLevel", type);
    }
    if (strcmp(type, "ByteLevel") == 0) {
        return read_byte_level(r, object);
    }
    if (strcmp(type, "Digits") == 0) {
        return read_digits(r, object);
    }
    if (strcmp(type, "Split") == 0) {
        return read_split(r, object);
    }
    if (strcmp(type, "Sequence") != 0) {
        return shd_fail(r->err, SHD_EUNSUPPORTED,
                        "pre_tokenizer '%.60s' is not supported; ByteLevel, Split, Digits and a "
                        "Sequence of them are",
                        type);
    }
    json_t *list = json_object_get(object, "pretokenizers"), *item;
    size_t i;
    SHD_TRY(check_keys(r, object, "pre_tokenizer", keys));
    if (!json_is_array(list) || ++r->depth > SHD_MAX_STAGES) {
        return shd_fail(r->err, SHD_EDATA, "pre_tokenizer: 'pretokenizers' is not a list");
    }
    json_array_foreach(list, i, item)
    {
        SHD_TRY(read_pre_tokenizer(r, item));
    }
    return 0;
}

/* ---- model ---- */

static int read_vocab(reader *r)
{
    const char *name;
    json_t *value;
    json_object_foreach(r->vocab, name, value)
    {
        const size_t n = strlen(name);
        const int64_t id = json_is_integer(value) ? json_integer_value(value) : -1;
        if (id > (int64_t)(2 * json_object_size(r->vocab) + SPARE_IDS)) {
            return shd_fail(r->err, SHD_EDATA, "token '%.100s' has id %lld among %zu tokens", name,
                            (long long)id, json_object_size(r->vocab));
        }
        char *bytes = shd_malloc(n + 1);
        const size_t size = bytes_of(r, name, n, bytes);
        const int plain = size == SIZE_MAX;
        const int rc = shd_tokenizer_put_piece(r->tok, id, plain ? name : bytes, plain ? n : size,
                                               SHD_PIECE_TEXT, r->err);
        free(bytes);
        SHD_TRY(rc);
        const shd_piece *piece = &r->tok->pieces[id];
        if (!plain && size > 0) {
            shd_bpe_put_token(r->tok->bpe, piece->text, size, (int32_t)id);
        }
    }
    return 0;
}

/* "left right", or ["left", "right"]; *joined (to be freed) gets both together. */
static int read_pair(const reader *r, size_t rank, json_t *merge, char **left, char **joined)
{
    if (json_is_string(merge)) {
        const char *line = json_string_value(merge);
        const char *space = strchr(line, ' ');
        if (space == NULL || space == line || space[1] == '\0' || strchr(space + 1, ' ') != NULL ||
            strlen(line) != json_string_length(merge)) {
            return shd_fail(r->err, SHD_EDATA,
                            "merge %zu '%.100s' is not two names with a space "
                            "between",
                            rank, line);
        }
        *left = shd_strdup(line);
        (*left)[space - line] = '\0';
    } else {
        json_t *a = json_array_get(merge, 0), *b = json_array_get(merge, 1);
        if (json_array_size(merge) != 2 || !json_is_string(a) || !json_is_string(b) ||
            strlen(json_string_value(a)) != json_string_length(a) ||
            strlen(json_string_value(b)) != json_string_length(b)) {
            return shd_fail(r->err, SHD_EDATA, "merge %zu is not a pair of names", rank);
        }
        *left = shd_asprintf("%s%c%s", json_string_value(a), 0, json_string_value(b));
    }
    const char *right = *left + strlen(*left) + 1;
    *joined = shd_asprintf("%s%s", *left, right);
    return 0;
}

static int read_merge(reader *r, size_t rank, json_t *merge)
{
    char *left = NULL, *joined = NULL;
    SHD_TRY(read_pair(r, rank, merge, &left, &joined));
    const char *names[] = {left, left + strlen(left) + 1, joined};
    int32_t ids[3];
    int rc = 0;
    for (int i = 0; i < 3 && rc == 0; i++) {
        json_t *id = json_object_get(r->vocab, names[i]);
        if (id == NULL) {
            rc = shd_fail(r->err, SHD_EDATA,
                          "merge %zu of '%.60s' and '%.60s': '%.60s' is not in the "
                          "vocabulary",
                          rank, names[0], names[1], names[i]);
        } else {
            ids[i] = (int32_t)json_integer_value(id);
        }
    }
    if (rc == 0) {
        shd_bpe_put_merge(r->tok->bpe, ids[0], ids[1], (uint32_t)rank, ids[2]);
    }
    free(left);
    free(joined);
    return rc;
}

static int read_unknown(reader *r, json_t *model)
{
    json_t *name = json_object_get(model, "unk_token");
    int fuse = 0;
    SHD_TRY(read_bool(r, model, "model", "fuse_unk", 0, &fuse));
    if (!is_set(name) || (json_is_string(name) && json_string_length(name) == 0)) {
        return 0;
    }
    json_t *id = json_is_string(name) ? json_object_get(r->vocab, json_string_value(name)) : NULL;
    if (id == NULL) {
        return shd_fail(r->err, SHD_EDATA, "model: unk_token is not in the vocabulary");
    }
    shd_bpe_set_unknown(r->tok->bpe, (int32_t)json_integer_value(id), fuse);
    return 0;
}

/* Settings of BPE that change ids and are none of byte-level models. */
static int check_model(const reader *r, json_t *model)
{
    static const char *const keys[] = {"type",
                                       "dropout",
                                       "unk_token",
                                       "continuing_subword_prefix",
                                       "end_of_word_suffix",
                                       "fuse_unk",
                                       "byte_fallback",
                                       "ignore_merges",
                                       "vocab",
                                       "merges",
                                       NULL};
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const char *type = type_of(model);
    if (json_is_object(model) && type[0] != '\0' && strcmp(type, "BPE") != 0) {
        return shd_fail(r->err, SHD_EUNSUPPORTED, "model '%.60s' is not supported; BPE is", type);
    }
    SHD_TRY(check_keys(r, model, "model", keys));
    json_t *dropout = json_object_get(model, "dropout");
    if (is_set(dropout) && json_number_value(dropout) != 0) {
        return shd_fail(r->err, SHD_EUNSUPPORTED, "model: dropout %g is not supported",
                        json_number_value(dropout));
    }
    for (int i = 0; i < 2; i++) {
        json_t *affix = json_object_get(model, affixes[i]);
        if (is_set(affix) && json_string_length(affix) > 0) {
            return shd_fail(r->err, SHD_EUNSUPPORTED, "model: %s is not supported", affixes[i]);
        }
    }
    int fallback = 0;
    SHD_TRY(read_bool(r, model, "model", "byte_fallback", 0, &fallback));
    if (fallback) {
        return shd_fail(r->err, SHD_EUNSUPPORTED,
                        "model: byte_fallback is not supported in tokenizer.json; such models come "
                        "with a tokenizer.model: name that file as the tokenizer");
    }
    return 0;
}

static int read_model(reader *r, json_t *model)
{
    int whole_words = 0;
    SHD_TRY(check_model(r, model));
    SHD_TRY(read_bool(r, model, "model", "ignore_merges", 0, &whole_words));
    json_t *merges = json_object_get(model, "merges"), *merge;
    size_t rank;
    r->vocab = json_object_get(model, "vocab");
    if (!json_is_object(r->vocab) || !json_is_array(merges)) {
        return shd_fail(r->err, SHD_EDATA, "model: no vocab object and merges list");
    }
    if (json_object_size(r->vocab) > SHD_MAX_VOCAB || json_array_size(merges) > SHD_MAX_VOCAB) {
        return shd_fail(r->err, SHD_EDATA, "model: more than %u tokens or merges", SHD_MAX_VOCAB);
    }
    r->tok->bpe = shd_bpe_create(json_object_size(r->vocab), json_array_size(merges));
    shd_bpe_set_whole_words(r->tok->bpe, whole_words);
    SHD_TRY(read_vocab(r));
    json_array_foreach(merges, rank, merge)
    {
        SHD_TRY(read_merge(r, rank, merge));
    }
    return read_unknown(r, model);
}

/* ---- added tokens ---- */

/* The id that an added token's name gets; the file must say the same. `next` is the first id that
 * is neither the model's nor an added token's. */
static int check_added_id(const reader *r, const char *name, int64_t id, int64_t *next)
{
    json_t *known = json_object_get(r->vocab, name);
    const int64_t expected = known != NULL ? json_integer_value(known) : *next;
    if (id != expected) {
        return shd_fail(r->err, SHD_EDATA, "added token '%.100s' has id %lld; %s %lld", name,
                        (long long)id,
                        known != NULL ? "in the model's vocabulary it has" : "the next free one is",
                        (long long)expected);
    }
    /* Taken names count too: ids of new ones go on after the largest of all added ones. */
    *next = id >= *next ? id + 1 : *next;
    return 0;
}

static int read_added(reader *r, size_t index, json_t *object, int64_t *next)
{
    static const char *const keys[] = {"id",     "content",    "single_word", "lstrip",
                                       "rstrip", "normalized", "special",     NULL};
    char what[40];
    snprintf(what, sizeof(what), "added token %zu", index);
    SHD_TRY(check_keys(r, object, what, keys));
    json_t *content = json_object_get(object, "content"), *id = json_object_get(object, "id");
    const char *name = json_string_value(content);
    const size_t n = json_string_length(content);
    if (name == NULL || n == 0 || strlen(name) != n || !json_is_integer(id)) {
        return shd_fail(r->err, SHD_EDATA, "%s has no content or no id", what);
    }
    if (n > MAX_ADDED_BYTES) { /* it is looked for at every place of a text */
        return shd_fail(r->err, SHD_EUNSUPPORTED, "%s has %zu bytes; at most %u are supported",
                        what, n, MAX_ADDED_BYTES);
    }
    shd_added_token token = {0};
    int special = 0, normalized = 0;
    SHD_TRY(read_bool(r, object, what, "single_word", 0, &token.single_word));
    SHD_TRY(read_bool(r, object, what, "lstrip", 0, &token.lstrip));
    SHD_TRY(read_bool(r, object, what, "rstrip", 0, &token.rstrip));
    SHD_TRY(read_bool(r, object, what, "special", 0, &special));
    SHD_TRY(read_bool(r, object, what, "normalized", !special, &normalized));
    SHD_TRY(check_added_id(r, name, json_integer_value(id), next));
    token.id = (int32_t)json_integer_value(id);
    const shd_piece_kind kind = special ? SHD_PIECE_SPECIAL : SHD_PIECE_TEXT;
    if (json_object_get(r->vocab, name) != NULL) {
        r->tok->pieces[token.id].kind = kind;
    } else {
        SHD_TRY(shd_tokenizer_put_piece(r->tok, token.id, name, n, kind, r->err));
    }
    if (!normalized || r->tok->n_forms == 0) {
        shd_added_put(normalized ? r->tok->normalized : r->tok->raw, name, n, &token);
        return 0;
    }
    size_t size = n;
    char *form = shd_strdup(name);
    for (uint32_t i = 0; i < r->tok->n_forms; i++) {
        char *more = shd_normalize(r->tok->forms[i], form, size, &size);
        free(form);
        form = more;
    }
    shd_added_put(r->tok->normalized, form, size, &token);
    free(form);
    return 0;
}

static int read_added_tokens(reader *r, json_t *list)
{
    json_t *item;
    size_t i;
    int64_t next = (int64_t)json_object_size(r->vocab);
    if (is_set(list) && !json_is_array(list)) {
        return shd_fail(r->err, SHD_EDATA, "added_tokens is not a list");
    }
    json_array_foreach(list, i, item)
    {
        SHD_TRY(read_added(r, i, item, &next));
    }
    return 0;
}

/* ---- post_processor, decoder ---- */

static int read_template_id(reader *r, json_t *specials, json_t *step, shd_ids *out)
{
    json_t *special = json_object_get(json_object_get(step, "SpecialToken"), "id");
    json_t *ids =
        json_is_string(special)
            ? json_object_get(json_object_get(specials, json_string_value(special)), "ids")
            : NULL;
    json_t *id;
    size_t i;
    if (!json_is_array(ids)) {
        return shd_fail(r->err, SHD_EDATA,
                        "post_processor: a step of 'single' is neither Sequence A "
                        "nor a special token with ids");
    }
    json_array_foreach(ids, i, id)
    {
        const int64_t value = json_is_integer(id) ? json_integer_value(id) : -1;
        if (value < 0 || value >= r->tok->vocab || r->tok->pieces[value].kind == SHD_PIECE_NONE) {
            return shd_fail(r->err, SHD_EDATA,
                            "post_processor: special token '%.100s' has an id "
                            "without a token",
                            json_string_value(special));
        }
        shd_ids_push(out, (int32_t)value);
    }
    return 0;
}

static int read_template(reader *r, json_t *object)
{
    json_t *steps = json_object_get(object, "single"), *step;
    size_t i;
    int seen = 0;
    if (!json_is_array(steps) || r->tok->before.n + r->tok->after.n > 0) {
        return shd_fail(r->err, SHD_EDATA,
                        "post_processor: not one TemplateProcessing with 'single'");
    }
    json_array_foreach(steps, i, step)
    {
        const char *sequence =
            json_string_value(json_object_get(json_object_get(step, "Sequence"), "id"));
        if (sequence != NULL && strcmp(sequence, "A") == 0 && !seen) {
            seen = 1;
        } else {
            SHD_TRY(read_template_id(r, json_object_get(object, "special_tokens"), step,
                                     seen ? &r->tok->after : &r->tok->before));
        }
    }
    return seen ? 0 : shd_fail(r->err, SHD_EDATA, "post_processor: 'single' leaves the text out");
}

static int read_post_processor(reader *r, json_t *object)
{
    const char *type = type_of(object);
    if (strcmp(type, "ByteLevel") == 0) {
        return 0; /* about offsets alone */
    }
    if (strcmp(type, "TemplateProcessing") == 0) {
        return read_template(r, object);
    }
    json_t *list = json_object_get(object, "processors"), *item;
    size_t i;
    if (strcmp(type, "Sequence") != 0 || !json_is_array(list) || ++r->depth > SHD_MAX_STAGES) {
        return shd_fail(
            r->err, SHD_EUNSUPPORTED,
            "post_processor '%.60s' is not supported; ByteLevel, TemplateProcessing and "
            "a Sequence of them are",
            type);
    }
    json_array_foreach(list, i, item)
    {
        SHD_TRY(read_post_processor(r, item));
    }
    return 0;
}

static int check_decoder(const reader *r, json_t *decoder)
{
    if (is_set(decoder) && strcmp(type_of(decoder), "ByteLevel") != 0) {
        return shd_fail(r->err, SHD_EUNSUPPORTED, "decoder '%.60s' is not supported; ByteLevel is",
                        type_of(decoder));
    }
    return 0;
}

/* ---- the file ---- */

static int read_parts(reader *r, json_t *root)
{
    static const char *const keys[] = {
        "version",       "truncation",     "padding", "added_tokens", "normalizer",
        "pre_tokenizer", "post_processor", "decoder", "model",        NULL};
    static const char *const unset[] = {"truncation", "padding"};
    SHD_TRY(check_keys(r, root, "the file", keys));
    for (int i = 0; i < 2; i++) {
        if (is_set(json_object_get(root, unset[i]))) {
            return shd_fail(r->err, SHD_EUNSUPPORTED, "%s is not supported; set it to null",
                            unset[i]);
        }
    }
    json_t *model = json_object_get(root, "model");
    SHD_TRY(read_model(r, model));
    json_t *part = json_object_get(root, "normalizer");
    SHD_TRY(is_set(part) ? read_normalizer(r, part) : 0);
    part = json_object_get(root, "pre_tokenizer");
    SHD_TRY(is_set(part) ? read_pre_tokenizer(r, part) : 0);
    if (!r->ends_in_bytes) {
        return shd_fail(r->err, SHD_EUNSUPPORTED,
                        "pre_tokenizer does not end in ByteLevel; other BPE is not supported");
    }
    SHD_TRY(read_added_tokens(r, json_object_get(root, "added_tokens")));
    part = json_object_get(root, "post_processor");
    SHD_TRY(is_set(part) ? read_post_processor(r, part) : 0);
    return check_decoder(r, json_object_get(root, "decoder"));
}

/* The first of the names that is a special token; -1: none. */
static int32_t usual(const shd_tokenizer *tok, const char *const *names)
{
    for (; *names != NULL; names++) {
        const int32_t id = shd_tokenizer_find(tok, *names, strlen(*names));
        if (id >= 0 && tok->pieces[id].kind == SHD_PIECE_SPECIAL) {
            return id;
        }
    }
    return -1;
}

int shd_tokenizer_read_json(shd_tokenizer *tok, const char *bytes, size_t n, shd_error *err)
{
    static const char *const begins[] = {"<|begin_of_text|>", "<s>", "<bos>", NULL};
    static const char *const ends[] = {"<|end_of_text|>", "<|endoftext|>", "</s>", "<eos>", NULL};
    reader r = {.tok = tok, .err = err};
    json_t *root = load(bytes, n, 0, err);
    if (root == NULL) {
        return SHD_EDATA;
    }
    tok->raw = shd_added_create();
    tok->normalized = shd_added_create();
    fill_byte_of(&r);
    const int rc = read_parts(&r, root);
    json_decref(root);
    tok->bos = usual(tok, begins);
    tok->eos = usual(tok, ends);
    return rc;
}

/* ---- tokenizer_config.json ---- */

/* "name" or {"content": "name"}; absent or null changes nothing. */
static int read_named(const shd_tokenizer *tok, json_t *root, const char *key, int32_t *id,
                      shd_error *err)
{
    json_t *value = json_object_get(root, key);
    value = json_is_object(value) ? json_object_get(value, "content") : value;
    if (!is_set(value)) {
        return 0;
    }
    const int32_t found = json_is_string(value) ? shd_tokenizer_find(tok, json_string_value(value),
                                                                     json_string_length(value))
                                                : -1;
    if (found < 0) {
        return shd_fail(err, SHD_EDATA, "%s '%.100s' is no token of the tokenizer", key,
                        json_is_string(value) ? json_string_value(value) : "");
    }
    *id = found;
    return 0;
}

/* Llama's own settings of what stands around a text. tokenizer.json says it itself. */
static int read_around(shd_tokenizer *tok, json_t *root, shd_error *err)
{
    json_t *begin = json_object_get(root, "add_bos_token"),
           *end = json_object_get(root, "add_eos_token");
    if (begin == NULL ? tok->bos >= 0 : json_is_true(begin)) {
        if (tok->bos < 0) {
            return shd_fail(err, SHD_EDATA, "add_bos_token is set, but there is no bos_token");
        }
        shd_ids_push(&tok->before, tok->bos);
    }
    if (json_is_true(end)) {
        if (tok->eos < 0) {
            return shd_fail(err, SHD_EDATA, "add_eos_token is set, but there is no eos_token");
        }
        shd_ids_push(&tok->after, tok->eos);
    }
    return 0;
}

/* Is piece `id` of tokenizer.model called so? It writes a space as SHD_SP_SPACE. */
static int is_piece(const shd_tokenizer *tok, int32_t id, const char *name)
{
    size_t n;
    shd_sp_kind kind;
    const char *piece = shd_sp_piece(tok->sp, id, &n, &kind);
    const char *end = piece + n;
    for (; piece < end && *name != '\0'; name++) {
        const int space = *name == ' ';
        const size_t size = space ? SHD_SP_SPACE_SIZE : 1;
        if ((size_t)(end - piece) < size || memcmp(piece, space ? SHD_SP_SPACE : name, size) != 0) {
            return 0;
        }
        piece += size;
    }
    return piece == end && *name == '\0';
}

/* Tokens that a fine-tuned model has and tokenizer.model does not. */
static int check_added(const shd_tokenizer *tok, const char *name, uint64_t id, shd_error *err)
{
    return id < tok->vocab && is_piece(tok, (int32_t)id, name)
               ? 0
               : shd_fail(err, SHD_EUNSUPPORTED,
                          "added token '%.40s' of id %llu is not in tokenizer.model; use a "
                          "tokenizer.json",
                          name, (unsigned long long)id);
}

static int check_decoder_tokens(const shd_tokenizer *tok, json_t *root, shd_error *err)
{
    json_t *token, *list = json_object_get(root, "added_tokens_decoder");
    const char *id;
    json_object_foreach(list, id, token)
    {
        const char *name = json_string_value(json_object_get(token, "content"));
        if (name == NULL) {
            return shd_fail(err, SHD_EDATA, "added token %.20s has no content", id);
        }
        SHD_TRY(check_added(tok, name, strtoul(id, NULL, 10), err));
    }
    return 0;
}

static int check_added_tokens(const shd_tokenizer *tok, json_t *root, shd_error *err)
{
    const char *name;
    json_t *id;
    if (!json_is_object(root)) {
        return shd_fail(err, SHD_EDATA, "not a JSON object");
    }
    json_object_foreach(root, name, id)
    {
        if (!json_is_integer(id) || json_integer_value(id) < 0) {
            return shd_fail(err, SHD_EDATA, "the id of added token '%.40s' is no whole number",
                            name);
        }
        SHD_TRY(check_added(tok, name, (uint64_t)json_integer_value(id), err));
    }
    return 0;
}

int shd_tokenizer_read_added(const shd_tokenizer *tok, const char *bytes, size_t n, shd_error *err)
{
    json_t *root = NULL;
    if (bytes == NULL || tok->sp == NULL) {
        return 0;
    }
    if ((root = load(bytes, n, 0, err)) == NULL) {
        return SHD_EDATA;
    }
    const int rc = check_added_tokens(tok, root, err);
    json_decref(root);
    return rc;
}

int shd_tokenizer_read_config(shd_tokenizer *tok, const char *bytes, size_t n, shd_error *err)
{
    json_t *root = NULL;
    /* No number is read here, and model_max_length is often 10^30: beyond any integer. */
    if (bytes != NULL && (root = load(bytes, n, JSON_DECODE_INT_AS_REAL, err)) == NULL) {
        return SHD_EDATA;
    }
    int rc = root != NULL && !json_is_object(root)
                 ? shd_fail(err, SHD_EDATA, "not a JSON object")
                 : read_named(tok, root, "bos_token", &tok->bos, err);
    rc = rc == 0 ? read_named(tok, root, "eos_token", &tok->eos, err) : rc;
    if (rc == 0 && tok->sp != NULL) {
        rc = read_around(tok, root, err);
        rc = rc == 0 ? check_decoder_tokens(tok, root, err) : rc;
    }
    json_decref(root);
    return rc;
}
