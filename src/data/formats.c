// SPDX-License-Identifier: Apache-2.0
// One record of a dataset as chat messages.
#include "data/formats.h"

#include "base/memory.h"
#include "base/nearest.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char *type_name(const json_t *value)
{
    static const char *const names[] = {
        [JSON_OBJECT] = "an object", [JSON_ARRAY] = "a list",  [JSON_STRING] = "a string",
        [JSON_INTEGER] = "a number", [JSON_REAL] = "a number", [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",      [JSON_NULL] = "null",
    };
    return value ? names[json_typeof(value)] : "missing";
}

// The string at key. Where it may be missing, null and no key are an empty string.
static int string_get(const json_t *object, const char *key, bool needed, const char **text,
                      size_t *bytes, struct fl_error *e)
{
    const json_t *value = json_object_get(object, key);

    if (!needed && (!value || json_is_null(value))) {
        *text = "";
        *bytes = 0;
        return 0;
    }
    if (!json_is_string(value))
        return error_set(e, -EINVAL, "\"%s\" is %s: it must be a string", key, type_name(value));
    *text = json_string_value(value);
    *bytes = json_string_length(value);
    return 0;
}

static struct message *message_add(struct message_list *list, enum role role, const char *content,
                                   size_t bytes)
{
    if (list->count == list->capacity) {
        list->capacity = 2 * list->capacity + 8;
        list->messages = memory_resize(list->messages, list->capacity, sizeof *list->messages);
    }
    list->messages[list->count] = (struct message){
        .role = role, .content = content, .bytes = bytes, .loss = role == ROLE_ASSISTANT};
    return &list->messages[list->count++];
}

static int role_get(const json_t *message, enum role *role, struct fl_error *e)
{
    const char *names[ROLES], *text, *nearest;
    size_t bytes;
    int rc = string_get(message, "role", true, &text, &bytes, e);

    if (rc < 0)
        return rc;
    for (*role = 0; *role < ROLES; (*role)++) {
        names[*role] = role_name(*role);
        if (strcmp(text, names[*role]) == 0)
            return 0;
    }
    nearest = nearest_name(text, names, ROLES);
    return error_set(e, -EINVAL, "unknown role \"%.32s\": write %s", text,
                     nearest ? nearest : "system, user or assistant");
}

static int message_convert(const json_t *object, struct message_list *list, struct fl_error *e)
{
    const json_t *loss = json_object_get(object, "loss");
    const char *content;
    struct message *message;
    enum role role;
    size_t bytes;
    int rc;

    if (!json_is_object(object))
        return error_set(e, -EINVAL, "is %s: write {\"role\": ..., \"content\": ...}",
                         type_name(object));
    rc = role_get(object, &role, e);
    if (rc == 0)
        rc = string_get(object, "content", true, &content, &bytes, e);
    if (rc < 0)
        return rc;
    if (loss && !json_is_boolean(loss) && !json_is_null(loss))
        return error_set(e, -EINVAL, "\"loss\" is %s: it must be true or false", type_name(loss));
    message = message_add(list, role, content, bytes);
    message->loss = message->loss && !json_is_false(loss);
    return 0;
}

static const json_t *messages_of(const json_t *record)
{
    return json_is_array(record) ? record : json_object_get(record, "messages");
}

static bool messages_match(const json_t *record)
{
    return messages_of(record) != NULL;
}

// {"messages": [{"role": ..., "content": ..., "loss": ...}]}, or the list alone.
static int messages_convert(const json_t *record, struct message_list *list, struct fl_error *e)
{
    const json_t *messages = messages_of(record), *message;
    size_t i;

    if (!json_is_array(messages))
        return error_set(e, -EINVAL, "\"messages\" is %s: it must be a list", type_name(messages));
    if (json_array_size(messages) == 0)
        return error_set(e, -EINVAL, "no messages: write at least a user and an assistant one");
    json_array_foreach(messages, i, message)
    {
        int rc = message_convert(message, list, e);
        if (rc < 0) {
            error_prefix(e, "message %zu", i + 1);
            return rc;
        }
    }
    return 0;
}

static bool alpaca_match(const json_t *record)
{
    return json_object_get(record, "instruction") || json_object_get(record, "output");
}

// {"system": ..., "instruction": ..., "input": ..., "output": ...}; system and input may be
// missing.
static int alpaca_convert(const json_t *record, struct message_list *list, struct fl_error *e)
{
    const char *system, *instruction, *input, *output;
    size_t system_bytes, instruction_bytes, input_bytes, output_bytes;
    int rc;

    if ((rc = string_get(record, "system", false, &system, &system_bytes, e)) < 0 ||
        (rc = string_get(record, "instruction", true, &instruction, &instruction_bytes, e)) < 0 ||
        (rc = string_get(record, "input", false, &input, &input_bytes, e)) < 0 ||
        (rc = string_get(record, "output", true, &output, &output_bytes, e)) < 0)
        return rc;
    if (system_bytes)
        message_add(list, ROLE_SYSTEM, system, system_bytes);
    if (instruction_bytes && input_bytes) {
        list->joined = memory_resize(list->joined, instruction_bytes + 1 + input_bytes, 1);
        memcpy(list->joined, instruction, instruction_bytes);
        list->joined[instruction_bytes] = '\n';
        memcpy(list->joined + instruction_bytes + 1, input, input_bytes);
        message_add(list, ROLE_USER, list->joined, instruction_bytes + 1 + input_bytes);
    } else if (input_bytes) {
        message_add(list, ROLE_USER, input, input_bytes);
    } else {
        message_add(list, ROLE_USER, instruction, instruction_bytes);
    }
    message_add(list, ROLE_ASSISTANT, output, output_bytes);
    return 0;
}

static const struct format {
    bool (*match)(const json_t *record);
    int (*convert)(const json_t *record, struct message_list *list, struct fl_error *e);
} formats[] = {
    {messages_match, messages_convert},
    {alpaca_match, alpaca_convert},
};

int format_messages(const json_t *record, struct message_list *list, struct fl_error *e)
{
    list->count = 0;
    if (!json_is_object(record) && !json_is_array(record))
        return error_set(e, -EINVAL, "a sample is %s: it must be a JSON object", type_name(record));
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (formats[i].match(record))
            return formats[i].convert(record, list, e);
    return error_set(e, -EINVAL,
                     "unknown format: write {\"instruction\", \"input\", \"output\"} or "
                     "{\"messages\": [{\"role\", \"content\"}]}");
}
