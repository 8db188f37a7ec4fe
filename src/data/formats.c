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

// What datasets call the roles.
static const struct {
    const char *name;
    enum role role;
} role_names[] = {
    {"system", ROLE_SYSTEM}, {"user", ROLE_USER},        {"assistant", ROLE_ASSISTANT},
    {"tool", ROLE_TOOL},     {"human", ROLE_USER},       {"gpt", ROLE_ASSISTANT},
    {"bot", ROLE_ASSISTANT}, {"observation", ROLE_TOOL}, {"tool_response", ROLE_TOOL},
};

#define ROLE_NAMES (sizeof role_names / sizeof *role_names)

static int role_get(const json_t *message, const char *key, enum role *role, struct fl_error *e)
{
    const char *names[ROLE_NAMES], *text, *nearest;
    size_t bytes;
    int rc = string_get(message, key, true, &text, &bytes, e);

    if (rc < 0)
        return rc;
    for (size_t i = 0; i < ROLE_NAMES; i++) {
        names[i] = role_names[i].name;
        *role = role_names[i].role;
        if (strcmp(text, names[i]) == 0)
            return 0;
    }
    nearest = nearest_name(text, names, ROLE_NAMES);
    return error_set(e, -EINVAL, "unknown role \"%.32s\": write %s", text,
                     nearest ? nearest : "system, user, assistant or tool");
}

static int tool_calls_check(const json_t *calls, struct fl_error *e)
{
    const json_t *call;
    size_t i;

    if (!json_is_array(calls))
        return error_set(e, -EINVAL, "\"tool_calls\" is %s: it must be a list", type_name(calls));
    json_array_foreach(calls, i, call)
    {
        const json_t *function = json_object_get(call, "function");

        function = function ? function : call;
        if (!json_is_string(json_object_get(function, "name")) ||
            !json_object_get(function, "arguments"))
            return error_set(e, -EINVAL, "tool call %zu: write {\"name\": ..., \"arguments\": ...}",
                             i + 1);
    }
    return 0;
}

// What an assistant's message may hold beside its content.
static int answer_convert(const json_t *object, struct message *message, struct fl_error *e)
{
    const json_t *loss = json_object_get(object, "loss");
    const json_t *calls = json_object_get(object, "tool_calls");
    const json_t *reasoning = json_object_get(object, "reasoning_content");

    if (loss && !json_is_boolean(loss) && !json_is_null(loss))
        return error_set(e, -EINVAL, "\"loss\" is %s: it must be true or false", type_name(loss));
    message->loss = message->loss && !json_is_false(loss);
    if (reasoning && !json_is_null(reasoning)) {
        int rc = string_get(object, "reasoning_content", true, &message->reasoning,
                            &message->reasoning_bytes, e);
        if (rc < 0)
            return rc;
    }
    if (!calls || json_is_null(calls) || (json_is_array(calls) && json_array_size(calls) == 0))
        return 0;
    if (message->role != ROLE_ASSISTANT)
        return error_set(e, -EINVAL,
                         "\"tool_calls\" in a message of role %s: only an assistant calls",
                         role_name(message->role));
    message->tool_calls = calls;
    return tool_calls_check(calls, e);
}

// keys: of the role and of the content. An answer that calls tools may have none.
static int message_convert(const json_t *object, struct message_list *list, struct fl_error *e)
{
    bool sharegpt = json_object_get(object, "from") && !json_object_get(object, "role");
    const char *content;
    enum role role;
    size_t bytes;
    int rc;

    if (!json_is_object(object))
        return error_set(e, -EINVAL, "is %s: write {\"role\": ..., \"content\": ...}",
                         type_name(object));
    rc = role_get(object, sharegpt ? "from" : "role", &role, e);
    if (rc == 0)
        rc = string_get(object, sharegpt ? "value" : "content",
                        !json_object_get(object, "tool_calls"), &content, &bytes, e);
    if (rc < 0)
        return rc;
    return answer_convert(object, message_add(list, role, content, bytes), e);
}

// The system message beside the conversation, where the record has one.
static int system_convert(const json_t *record, struct message_list *list, struct fl_error *e)
{
    const char *system;
    size_t bytes;
    int rc = string_get(record, "system", false, &system, &bytes, e);

    if (rc == 0 && bytes)
        message_add(list, ROLE_SYSTEM, system, bytes);
    return rc;
}

static const json_t *messages_of(const json_t *record, const char **key)
{
    const json_t *messages = json_object_get(record, *key = "messages");

    if (json_is_array(record))
        return record;
    return messages ? messages : json_object_get(record, *key = "conversations");
}

static bool messages_match(const json_t *record)
{
    const char *key;

    return messages_of(record, &key) != NULL;
}

static int messages_convert(const json_t *record, struct message_list *list, struct fl_error *e)
{
    const char *key;
    const json_t *messages = messages_of(record, &key), *message;
    size_t i;
    int rc = system_convert(record, list, e);

    if (rc < 0)
        return rc;
    if (!json_is_array(messages))
        return error_set(e, -EINVAL, "\"%s\" is %s: it must be a list", key, type_name(messages));
    if (json_array_size(messages) == 0)
        return error_set(e, -EINVAL, "no messages: write at least a user and an assistant one");
    json_array_foreach(messages, i, message)
    {
        rc = message_convert(message, list, e);
        if (rc < 0)
            return error_prefix(e, "message %zu", i + 1);
    }
    return 0;
}

// Names of a question and of an answer, the first one that a record has.
static const char *const questions[] = {"query",       "prompt",   "input",
                                        "instruction", "question", "problem"};
static const char *const answers[] = {"response", "answer",     "output",
                                      "text",     "completion", "content"};

#define QUESTIONS (sizeof questions / sizeof *questions)
#define ANSWERS   (sizeof answers / sizeof *answers)

static const char *name_of(const json_t *record, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (json_object_get(record, names[i]))
            return names[i];
    return NULL;
}

// An answer alone, or an instruction alone, is told what it lacks.
static bool pair_match(const json_t *record)
{
    return name_of(record, questions, QUESTIONS) || name_of(record, answers, ANSWERS);
}

// Earlier turns: [[question, answer], ...].
static int history_convert(const json_t *record, struct message_list *list, struct fl_error *e)
{
    const json_t *history = json_object_get(record, "history"), *turn;
    size_t i;

    if (!history || json_is_null(history))
        return 0;
    if (!json_is_array(history))
        return error_set(e, -EINVAL, "\"history\" is %s: it must be a list", type_name(history));
    json_array_foreach(history, i, turn)
    {
        if (json_array_size(turn) != 2 || !json_is_string(json_array_get(turn, 0)) ||
            !json_is_string(json_array_get(turn, 1)))
            return error_set(e, -EINVAL, "turn %zu of \"history\": write [question, answer]",
                             i + 1);
        for (size_t k = 0; k < 2; k++) {
            const json_t *text = json_array_get(turn, k);
            message_add(list, k ? ROLE_ASSISTANT : ROLE_USER, json_string_value(text),
                        json_string_length(text));
        }
    }
    return 0;
}

// Alpaca's question: an instruction, an input, or both with a newline between.
static int instruction_convert(const json_t *record, struct message_list *list, struct fl_error *e)
{
    const char *instruction, *input;
    size_t instruction_bytes, input_bytes;
    int rc;

    if ((rc = string_get(record, "instruction", true, &instruction, &instruction_bytes, e)) < 0 ||
        (rc = string_get(record, "input", false, &input, &input_bytes, e)) < 0)
        return rc;
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
    return 0;
}

static int pair_convert(const json_t *record, struct message_list *list, struct fl_error *e)
{
    const char *question = name_of(record, questions, QUESTIONS);
    const char *answer = name_of(record, answers, ANSWERS), *text;
    size_t bytes;
    int rc;

    if ((rc = system_convert(record, list, e)) < 0 || (rc = history_convert(record, list, e)) < 0)
        return rc;
    if (json_object_get(record, "instruction") &&
        (!strcmp(question, "input") || !strcmp(question, "instruction"))) {
        rc = instruction_convert(record, list, e);
    } else {
        rc = string_get(record, question ? question : "instruction", true, &text, &bytes, e);
        if (rc == 0)
            message_add(list, ROLE_USER, text, bytes);
    }
    if (rc < 0)
        return rc;
    rc = string_get(record, answer ? answer : "output", true, &text, &bytes, e);
    if (rc == 0)
        message_add(list, ROLE_ASSISTANT, text, bytes);
    return rc;
}

static const struct format {
    bool (*match)(const json_t *record);
    int (*convert)(const json_t *record, struct message_list *list, struct fl_error *e);
} formats[] = {
    {messages_match, messages_convert},
    {pair_match, pair_convert},
};

// A list, or its text.
static int tools_convert(const json_t *record, struct message_list *list, struct fl_error *e)
{
    const json_t *tools = json_object_get(record, "tools");
    json_error_t reason;

    list->tools = NULL;
    json_decref(list->parsed);
    list->parsed = NULL;
    if (!tools || json_is_null(tools))
        return 0;
    if (json_is_string(tools)) {
        if (json_string_length(tools) == 0)
            return 0;
        list->parsed = json_loadb(json_string_value(tools), json_string_length(tools), 0, &reason);
        if (!list->parsed)
            return error_set(e, -EINVAL, "\"tools\" is text that is not JSON: %s", reason.text);
        tools = list->parsed;
    }
    if (!json_is_array(tools))
        return error_set(e, -EINVAL, "\"tools\" is %s: it must be a list", type_name(tools));
    list->tools = tools;
    return 0;
}

int format_messages(const json_t *record, struct message_list *list, struct fl_error *e)
{
    int rc;

    list->count = 0;
    if (!json_is_object(record) && !json_is_array(record))
        return error_set(e, -EINVAL, "a sample is %s: it must be a JSON object", type_name(record));
    rc = tools_convert(record, list, e);
    for (size_t i = 0; i < sizeof formats / sizeof *formats && rc == 0; i++)
        if (formats[i].match(record))
            return formats[i].convert(record, list, e);
    if (rc < 0)
        return rc;
    return error_set(e, -EINVAL,
                     "unknown format: write {\"instruction\", \"input\", \"output\"}, "
                     "{\"query\", \"response\"} or {\"messages\": [{\"role\", \"content\"}]}");
}

void message_list_clear(struct message_list *list)
{
    free(list->messages);
    free(list->joined);
    json_decref(list->parsed);
    *list = (struct message_list){0};
}
