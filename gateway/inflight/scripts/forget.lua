-- This replica has read its messages up to one of them; nothing that was read stays behind.
-- ARGV: id of the first message that is to stay
redis.call('XTRIM', P .. 'inbox:' .. me, 'MINID', '=', ARGV[3])
return {'done', waiting()}
