-- What a script finds around itself: read-only globals, the API, libraries whose errors look as Valkey's do.
--
-- Lua 5.1 has no read-only tables. A table that scripts must not change is shown to them as an empty stand-in whose
-- metatable leads reads to the real one and refuses writes. Functions that look into a table without asking its
-- metatable (next, rawset, table.insert and so on) know about stand-ins.
--
-- Natives throw objects that stand for errors (`native.thrown` tells which). Whatever shows errors to a script turns them
-- into what they stand for. `...` is what kind of scripts this is for, and the natives.

local kind, native = ...
local for_functions = kind == "function"

local error, type, tostring, tonumber, select = error, type, tostring, tonumber, select
local rawset, rawget, next, pairs = rawset, rawget, next, pairs
local getmetatable, setmetatable, setfenv = getmetatable, setmetatable, setfenv
local pcall, xpcall, loadstring = pcall, xpcall, loadstring
local byte, find, sub, match = string.byte, string.find, string.sub, string.match
local insert, foreach, concat = table.insert, table.foreach, table.concat
local resume = coroutine.resume
local null = native.null

-- Read-only tables -------------------------------------------------------------------------------------------------

local READONLY = "Attempt to modify a readonly table"
-- The real table behind each stand-in.
local real_of = setmetatable({}, {__mode = "k"})
-- What getmetatable answers for a stand-in.
local shown_metatable = setmetatable({}, {__mode = "k"})

local function refuse()
  error(READONLY, 2)
end

local function frozen(real, metatable)
  local shown = {}
  real_of[shown] = real
  shown_metatable[shown] = metatable
  return setmetatable(shown, {__index = real, __newindex = refuse})
end

local function missing(_, name)
  local of = type(name)
  if of ~= "string" and of ~= "number" then
    error("Second argument to luaProtectedTableError must be a string or number", 2)
  end
  error("Script attempted to access nonexistent global variable '" .. name .. "'", 2)
end

-- Errors -----------------------------------------------------------------------------------------------------------

-- `level` counts from the function that calls these.
local function bad_argument(position, name, text, level)
  error("bad argument #" .. position .. " to '" .. name .. "' (" .. text .. ")", level + 1)
end

local function got(position, ...)
  if select("#", ...) < position then
    return "no value"
  end
  return type((select(position, ...)))
end

local function check_table(name, ...)
  if type((...)) ~= "table" then
    bad_argument(1, name, "table expected, got " .. got(1, ...), 3)
  end
end

-- What stops a script is no error that it may catch. Nothing else is userdata, but for the null of cjson.
local function stops(err)
  return type(err) == "userdata" and err ~= null
end

-- The error that a script sees; nothing can be seen of what stops it.
local thrown = native.thrown
local function shown_error(err)
  if stops(err) then
    err = thrown(err)
    if stops(err) then
      error(err, 0)
    end
  end
  return err
end

-- An error as pcall of commands returns it: its text begins with a code.
local function error_table(text)
  text = match(text, "^%Z*")
  local code, message = "ERR", text
  if byte(text) == 45 then
    local space = find(text, " ", 1, true)
    if space then
      code, message = sub(text, 2, space - 1), sub(text, space + 1)
    else
      message = sub(text, 2)
    end
  end
  message = match(message, "^[\r\n]*(.-)[\r\n]*$")
  return {err = code .. " " .. message}
end

-- Globals ----------------------------------------------------------------------------------------------------------

local globals = {}

function globals.pairs(...)
  check_table("pairs", ...)
  local subject = ...
  -- The table itself is among the results, so a stand-in must be walked as one.
  if real_of[subject] then
    return globals.next, subject, nil
  end
  return next, subject, nil
end

function globals.next(...)
  check_table("next", ...)
  local subject, key = ...
  return next(real_of[subject] or subject, key)
end

function globals.rawget(...)
  check_table("rawget", ...)
  local subject, key = ...
  return rawget(real_of[subject] or subject, key)
end

function globals.rawset(...)
  check_table("rawset", ...)
  local subject, key, value = ...
  if real_of[subject] then
    error(READONLY, 0)
  end
  return rawset(subject, key, value)
end

function globals.setmetatable(...)
  check_table("setmetatable", ...)
  local subject, metatable = ...
  if type(metatable) ~= "table" and (metatable ~= nil or select("#", ...) < 2) then
    bad_argument(2, "setmetatable", "nil or table expected", 2)
  end
  if real_of[subject] then
    error(READONLY, 0)
  end
  local current = getmetatable(subject)
  if type(current) ~= "table" and current ~= nil then
    error("cannot change a protected metatable", 2)
  end
  local ok, result = pcall(setmetatable, subject, metatable)
  if not ok then
    error(result, 2)
  end
  return result
end

local string_metatable

function globals.getmetatable(...)
  if select("#", ...) == 0 then
    bad_argument(1, "getmetatable", "value expected", 2)
  end
  local subject = ...
  if type(subject) == "string" then
    return string_metatable
  end
  if real_of[subject] then
    return shown_metatable[subject]
  end
  return getmetatable(subject)
end

local function end_protected(ok, ...)
  if ok then
    return true, ...
  end
  return false, shown_error((...))
end

local function end_pcall(ok, ...)
  if ok then
    return true, ...
  end
  local err = shown_error((...))
  if type(err) == "table" then
    local text = err.err
    if type(text) == "string" or type(text) == "number" then
      return false, text
    end
  end
  return false, err
end

function globals.pcall(...)
  if select("#", ...) == 0 then
    return
  end
  return end_pcall(pcall(...))
end

function globals.xpcall(...)
  if select("#", ...) < 2 then
    bad_argument(2, "xpcall", "value expected", 2)
  end
  local body, handle = ...
  return end_protected(xpcall(body, function(err)
    if stops(err) then
      err = thrown(err)
      if stops(err) then
        return err
      end
    end
    return handle(err)
  end))
end

local shown_globals

-- The interpreter takes source code only: compiled code could do anything.
local function compile(text, name)
  local chunk, message = loadstring(text, name)
  if chunk then
    return setfenv(chunk, shown_globals)
  end
  return nil, message
end

function globals.loadstring(...)
  local text, name = ...
  local of = type(text)
  if of ~= "string" and of ~= "number" then
    bad_argument(1, "loadstring", "string expected, got " .. got(1, ...), 2)
  end
  text = tostring(text)
  return compile(text, name == nil and text or tostring(name))
end

function globals.load(...)
  local reader, name = ...
  if type(reader) ~= "function" then
    bad_argument(1, "load", "function expected, got " .. got(1, ...), 2)
  end
  local pieces = {}
  while true do
    local ok, piece = pcall(reader)
    if not ok then
      return nil, shown_error(piece)
    end
    if piece == nil or piece == "" then
      break
    end
    if type(piece) ~= "string" then
      return nil, "reader function must return a string"
    end
    pieces[#pieces + 1] = piece
  end
  return compile(concat(pieces), name == nil and "=(load)" or tostring(name))
end

-- Functions that reach into others, for scripts that may have them (`lua-enable-insecure-api`). What is around natives and
-- around this file is shown as what is around scripts.
if native.insecure then
  local getfenv, own = getfenv, getfenv(1)
  globals.newproxy = newproxy

  -- Which function is asked for, and what is around it; what is around one that has ended with a tail call is not known.
  local function checked(name, ...)
    local of = ...
    if of == nil then
      of = 1
    end
    if type(of) ~= "function" then
      of = tonumber(of)
      if not of then
        bad_argument(1, name, "number expected, got " .. got(1, ...), 3)
      end
      if of < 0 then
        bad_argument(1, name, "level must be non-negative", 3)
      end
    end
    -- Levels count from the caller of the caller.
    local found, around = pcall(getfenv, type(of) == "number" and of > 0 and of + 3 or of)
    if not found then
      if not find(around, "tail call", 1, true) then
        bad_argument(1, name, "invalid level", 3)
      end
      return 0, own
    end
    return of, around
  end

  function globals.getfenv(...)
    local of, around = checked("getfenv", ...)
    if of == 0 or around == own then
      return shown_globals
    end
    return around
  end

  function globals.setfenv(...)
    local of, around = checked("setfenv", ...)
    local wanted = select(2, ...)
    if type(wanted) ~= "table" then
      bad_argument(2, "setfenv", "table expected, got " .. got(2, ...), 2)
    end
    if of == 0 then
      return
    end
    local changed, result = around ~= own, nil
    if changed then
      changed, result = pcall(setfenv, type(of) == "number" and of + 2 or of, wanted)
    end
    if not changed then
      error("'setfenv' cannot change environment of given object", 2)
    end
    return result
  end
end

for _, name in pairs({
  "assert", "collectgarbage", "error", "gcinfo", "ipairs", "rawequal", "select", "tonumber", "tostring", "type",
  "unpack", "_VERSION",
}) do
  globals[name] = _G[name]
end

-- Libraries --------------------------------------------------------------------------------------------------------

local function copy(library)
  local result = {}
  for name, value in pairs(library) do
    result[name] = value
  end
  return result
end

local string_library = frozen(copy(string))
string_metatable = frozen({__index = string_library})

local table_library = copy(table)

function table_library.insert(...)
  check_table("insert", ...)
  local subject, position = ...
  local count = select("#", ...)
  if count == 3 then
    if not tonumber(position) then
      bad_argument(2, "insert", "number expected, got " .. got(2, ...), 2)
    end
  elseif count ~= 2 then
    error("wrong number of arguments to 'insert'", 2)
  end
  if real_of[subject] then
    error(READONLY, 0)
  end
  return insert(...)
end

function table_library.foreach(...)
  check_table("foreach", ...)
  local subject, visit = ...
  if type(visit) ~= "function" then
    bad_argument(2, "foreach", "function expected, got " .. got(2, ...), 2)
  end
  return foreach(real_of[subject] or subject, visit)
end

local coroutine_library = copy(coroutine)

function coroutine_library.resume(...)
  if type((...)) ~= "thread" then
    bad_argument(1, "resume", "coroutine expected", 2)
  end
  return end_protected(resume(...))
end

local math_library = copy(math)

math_library.random = native.random
math_library.randomseed = native.randomseed

globals.string = string_library
globals.table = frozen(table_library)
globals.coroutine = frozen(coroutine_library)
globals.math = frozen(math_library)
globals.os = frozen({clock = os.clock})
globals.cjson = frozen(native.cjson)
globals.cmsgpack = frozen(native.cmsgpack)
globals.struct = frozen(native.struct)
globals.bit = frozen(native.bit)

-- The server's API -------------------------------------------------------------------------------------------------

local api = copy(native.constants)

-- Both are C functions. A tail call of a Lua function would replace the frame of its caller, and errors could no longer
-- name the caller's line.
api.call = native.call

local try_host, failure = native.try_call, native.failure

-- The reply of a call, or the error that the script sees instead.
local function end_call(ok, ...)
  if ok then
    return ...
  end
  return shown_error((...))
end

api.pcall = native.command_function(function()
  return shown_error(failure())
end, function(...)
  return end_call(try_host(...))
end)

function api.error_reply(...)
  local text = ...
  if select("#", ...) ~= 1 or type(text) ~= "string" then
    return error_table("wrong number or type of arguments")
  end
  if byte(text) ~= 45 then
    text = "-" .. text
  end
  return error_table(text)
end

function api.status_reply(...)
  local text = ...
  if select("#", ...) ~= 1 or type(text) ~= "string" then
    return error_table("wrong number or type of arguments")
  end
  return {ok = text}
end

-- A debugger shows the errors that a script makes up.
if native.note_error then
  local error_reply = api.error_reply

  function api.error_reply(...)
    if select("#", ...) == 1 and type((...)) == "string" then
      native.note_error((...))
    end
    return error_reply(...)
  end
end

api.acl_check_cmd = native.acl_check_cmd
api.sha1hex = native.sha1hex
api.setresp = native.setresp
api.set_repl = native.set_repl
api.log = native.log

if not for_functions then
  -- Only a debugger gives these.
  api.breakpoint = native.breakpoint or function()
    return false
  end
  api.debug = native.debug or function() end

  function api.replicate_commands()
    return true
  end
end

globals.redis = frozen(api)
globals.server = globals.redis

-- Running ----------------------------------------------------------------------------------------------------------

-- Adds to an error where it happened.
local function note_place(err)
  if stops(err) then
    err = thrown(err)
    if stops(err) then
      return err
    end
  end
  if type(err) ~= "table" then
    err = {err = "ERR " .. tostring(err)}
  end
  local source, line = native.where()
  if source and not real_of[err] then
    err["source"] = source
    err["line"] = line
  end
  return err
end

if not for_functions then
  globals.__redis__err__handler = note_place
  globals.__server__err__handler = note_place
  globals.KEYS = {}
  globals.ARGV = {}
end

local missing_metatable = {__index = missing}
setmetatable(globals, missing_metatable)
shown_globals = frozen(globals, frozen({__index = missing}))
globals._G = shown_globals

local program = {globals = shown_globals, real_of = real_of}

-- Runs what the user of a debugger wants.
function program.attempt(code)
  local ok, result = pcall(code)
  if not ok and stops(result) then
    result = thrown(result)
  end
  return ok, result
end

program.note_place = note_place
program.variables = globals

-- Runs the code of a library, which finds nothing but what it needs to register functions. `register` gets a name, a
-- function, and what else was told about it; it returns what is wrong, if anything is.
function program.load(library, register)
  local loading = copy(native.constants)
  for name in pairs(loading) do
    if sub(name, 1, 5) == "REPL_" then
      loading[name] = nil
    end
  end
  loading.log = native.log

  local function refuse_registration(text)
    error(error_table(text), 0)
  end

  local function read_flags(list)
    local flags = {}
    local position = 1
    while true do
      local flag = list[position]
      if flag == nil then
        return flags
      end
      if type(flag) ~= "string" and type(flag) ~= "number" then
        refuse_registration("unknown flag given")
      end
      flags[position] = tostring(flag)
      position = position + 1
    end
  end

  local function is_text(value)
    return type(value) == "string" or type(value) == "number"
  end

  local function read_named(arguments)
    if type(arguments) ~= "table" then
      refuse_registration("calling server.register_function with a single argument is only applicable to Lua table "
        .. "(representing named arguments).")
    end
    local name, description, callback, flags
    for key, value in pairs(arguments) do
      if not is_text(key) then
        refuse_registration("named argument key given to server.register_function is not a string")
      end
      local argument = tostring(key):lower()
      if argument == "function_name" then
        if not is_text(value) then
          refuse_registration("function_name argument given to server.register_function must be a string")
        end
        name = tostring(value)
      elseif argument == "description" then
        if not is_text(value) then
          refuse_registration("description argument given to server.register_function must be a string")
        end
        description = tostring(value)
      elseif argument == "callback" then
        if type(value) ~= "function" then
          refuse_registration("callback argument given to server.register_function must be a function")
        end
        callback = value
      elseif argument == "flags" then
        if type(value) ~= "table" then
          refuse_registration("flags argument to server.register_function must be a table representing function flags")
        end
        flags = read_flags(value)
      else
        refuse_registration("unknown argument given to server.register_function")
      end
    end
    if not name then
      refuse_registration("server.register_function must get a function name argument")
    end
    if not callback then
      refuse_registration("server.register_function must get a callback argument")
    end
    return name, callback, description, flags
  end

  local finished = false

  function loading.register_function(...)
    if finished then
      refuse_registration("server.register_function can only be called on FUNCTION LOAD command")
    end
    local count = select("#", ...)
    if count < 1 or count > 2 then
      refuse_registration("wrong number of arguments to server.register_function")
    end
    local name, callback, description, flags
    if count == 1 then
      name, callback, description, flags = read_named((...))
    else
      name, callback = ...
      if not is_text(name) then
        refuse_registration("first argument to server.register_function must be a string")
      end
      name = tostring(name)
      if type(callback) ~= "function" then
        refuse_registration("second argument to server.register_function must be a function")
      end
    end
    local wrong = register(name, callback, description, flags or {})
    if wrong then
      refuse_registration(wrong)
    end
  end

  setmetatable(loading, missing_metatable)
  local shown = frozen(loading, frozen({__index = missing}))
  local surroundings = setmetatable({redis = shown, server = shown}, missing_metatable)
  -- The functions of the library keep the globals that they were made with, so it is these that change.
  local metatable = getmetatable(shown_globals)
  metatable.__index = surroundings
  local ok, err = pcall(library)
  metatable.__index = globals
  finished = true
  if ok then
    return true
  end
  if stops(err) then
    err = thrown(err)
    if stops(err) then
      return false, err
    end
  end
  if type(err) == "table" then
    local text = err.err
    return false, is_text(text) and tostring(text) or nil
  end
  return false, "ERR " .. tostring(err)
end

return program
